package tier

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/raw"
	"github.com/stocached/stocached/source/sourcetest"
)

const size = 100

// made is a source whose sample i has bytes i, and that counts reads.
type made struct {
	reads  atomic.Int32
	hangs  chan struct{} // nil: reads do not wait
	closed atomic.Int32
}

func (*made) Info() source.Info {
	return source.Info{Samples: 100, Fingerprint: "made", Schema: shm.Schema{SampleBytes: size}}
}
func (*made) Size(i int) (int, error) {
	if i < 0 || i >= 100 {
		return 0, source.BadIndex(i, 100)
	}
	return size, nil
}
func (m *made) Read(ctx context.Context, i int, dst []byte) (int, error) {
	m.reads.Add(1)
	if m.hangs != nil {
		<-m.hangs
	}
	return copy(dst, bytes.Repeat([]byte{byte(i)}, size)), nil
}
func (*made) Where(int) string { return "" }
func (m *made) Close() error   { m.closed.Add(1); return nil }

// memory is a tier in memory.
type memory struct {
	mu      sync.Mutex
	has     map[int][]byte
	refuses bool
	wait    chan struct{} // a Put waits for it; nil: it does not wait
	gets    int
	closed  bool
}

func (m *memory) Get(_ context.Context, i, n int, dst []byte) (int, Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	if len(dst) != n+Spare {
		panic("a Get without Spare")
	}
	for k := range dst[n:] {
		dst[n+k] = 255 // a tier may
	}
	if m.has[i] == nil {
		return 0, Miss
	}
	return copy(dst, m.has[i]), Hit
}
func (m *memory) Accepts(int, int) bool { return !m.refuses }
func (m *memory) Put(ctx context.Context, i int, sample []byte) {
	if m.wait != nil {
		select {
		case <-m.wait:
		case <-ctx.Done():
			return
		}
	}
	if cap(sample) < len(sample)+Spare {
		panic("a Put without Spare")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.has[i] = bytes.Clone(sample)
}
func (m *memory) Status() Status { return Status{Kind: "memory"} }
func (m *memory) Close() error   { m.closed = true; return nil }

func (m *memory) held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.has)
}

func newMemory() *memory { return &memory{has: map[int][]byte{}} }

func read(t *testing.T, s source.Source, i, spare int) {
	t.Helper()
	dst := make([]byte, size+spare+1)
	dst[len(dst)-1] = 77
	n, err := s.Read(context.Background(), i, dst[:size+spare])
	if err != nil || !bytes.Equal(dst[:n], bytes.Repeat([]byte{byte(i)}, size)) || dst[len(dst)-1] != 77 {
		t.Errorf("sample %d: %d bytes, %v, %v", i, n, err, dst)
	}
}

// Ensure that a source with a tier that has nothing is a source as any other.
func TestSuite(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		path := filepath.Join(t.TempDir(), "records.bin")
		var want [][]byte
		for i := range 7 {
			want = append(want, bytes.Repeat([]byte{byte(i)}, size))
		}
		fatal.If(t, os.WriteFile(path, bytes.Join(want, nil), 0o600))
		return sourcetest.Fixture{Want: want, Files: []string{path}, Open: func(*testing.T) (source.Source, error) {
			s, err := raw.Kind.Open(context.Background(), source.Settings{"path": path, "sample_bytes": size})
			if err != nil {
				return nil, err
			}
			return Around(s, New([]Tier{&memory{refuses: true}}, []int64{1000})), nil
		}}
	})
}

// Ensure that tiers are asked from fast to slow, and that what a slower one has goes to faster ones.
func TestOrder(t *testing.T) {
	fast, slow, from := newMemory(), newMemory(), &made{}
	s := Around(from, New([]Tier{fast, slow}, []int64{1 << 20, 1 << 20}))
	for _, spare := range []int{0, 1, Spare - 1, Spare, 500} {
		read(t, s, 1+spare%90, spare)
	}
	fatal.Until(t, "both tiers have all", func() bool { return fast.held() == 5 && slow.held() == 5 })
	delete(fast.has, 1)
	slowGets := slow.gets
	read(t, s, 1, 0) // from slow
	fatal.Until(t, "the fast tier has 5", func() bool { return fast.held() == 5 })
	read(t, s, 1, 0) // from fast
	if slow.gets != slowGets+1 || from.reads.Load() != 5 {
		t.Errorf("%d gets of the slow tier, %d reads", slow.gets-slowGets, from.reads.Load())
	}
	expect.Fails(s.Read(context.Background(), 1, make([]byte, size-1)))(t, source.ErrShort)
	expect.Fails(s.Read(context.Background(), 100, make([]byte, size)))(t, source.ErrIndex)
	for range 2 {
		if err := s.Close(); err != nil || !fast.closed || !slow.closed {
			t.Error(err)
		}
	}
}

// leased is a memory that machines share: another one loads sample 1, which takes two looks.
type leased struct {
	*memory
	looks, waited int
}

func (l *leased) Claim(ctx context.Context, i, n int, dst []byte) (int, Result) {
	if l.looks++; i == 1 && l.looks <= 2 {
		return 0, Busy
	}
	if i == 1 {
		l.has[1] = bytes.Repeat([]byte{1}, size)
	}
	if length, r := l.Get(ctx, i, n, dst); r == Hit {
		return length, Hit
	}
	return 0, Claimed
}
func (l *leased) Release(int)                {}
func (l *leased) LongestWait() time.Duration { return time.Minute }
func (l *leased) Waited()                    { l.waited++ }
func (l *leased) GaveUp()                    {}

// Ensure that a sample that a read has waited for gets into the tiers before the shared one, and that only such reads
// count as waits.
func TestWaitedForSampleIsWrittenBack(t *testing.T) {
	fast, slow, from := newMemory(), &leased{memory: newMemory()}, &made{}
	s := Around(from, New([]Tier{fast, slow}, []int64{1 << 20, 1 << 20}))
	read(t, s, 1, 0)
	if from.reads.Load() != 0 || slow.waited != 1 {
		t.Errorf("%d reads, %d waits", from.reads.Load(), slow.waited)
	}
	fatal.Until(t, "the fast tier has 1", func() bool { return fast.held() == 1 })
	read(t, s, 2, 0)
	if from.reads.Load() != 1 || slow.waited != 1 {
		t.Errorf("%d reads, %d waits", from.reads.Load(), slow.waited)
	}
	expect.NoError(t, s.Close())
}

// Ensure that tiers of this machine do not get what another node keeps, whether it comes from a shared tier or from the
// source, and that a shared one gets it.
func TestKeptElsewhere(t *testing.T) {
	fast, slow, last := newMemory(), &leased{memory: newMemory()}, newMemory()
	s := Around(&made{}, New([]Tier{fast, slow, last}, []int64{1 << 20, 1 << 20, 1 << 20}))
	slow.has[3] = bytes.Repeat([]byte{3}, size)
	ctx := source.KeptElsewhere(context.Background())
	for _, i := range []int{1, 2, 3} {
		expect.Gives(s.Read(ctx, i, make([]byte, size)))(t, size)
	}
	read(t, s, 4, 0)
	if err := s.Close(); err != nil { // it writes what is in the queues
		t.Error(err)
	}
	if len(fast.has) != 1 || len(last.has) != 1 || fast.has[4] == nil || slow.has[2] == nil || slow.has[4] == nil {
		t.Errorf("%d and %d samples, and %d in the shared tier", len(fast.has), len(last.has), len(slow.has))
	}
}

// Ensure that a tier whose writes hang drops what its queue has no room for, delays no read, and delays
// the end for a bounded time only.
func TestSlowWrites(t *testing.T) {
	defer func(was time.Duration) { flushTime = was }(flushTime)
	flushTime = 500 * time.Millisecond
	slow, from := newMemory(), &made{}
	slow.wait = make(chan struct{})
	set := New([]Tier{slow}, []int64{10*size + 1})
	s := Around(from, set)
	began := time.Now()
	for i := range 50 {
		read(t, s, i, 0)
	}
	if st := set.Status()[0]; st.Dropped != 40 || st.Queued != 10*size || time.Since(began) > 30*time.Second {
		t.Errorf("%+v in %v", st, time.Since(began))
	}
	slow.refuses = true // without a copy in the queue
	read(t, s, 60, 0)
	if st := set.Status()[0]; st.Dropped != 40 || st.Queued != 10*size {
		t.Errorf("%+v", st)
	}
	began = time.Now()
	if err := s.Close(); err != nil || time.Since(began) < flushTime/2 || time.Since(began) > 20*flushTime {
		t.Errorf("closed after %v: %v", time.Since(began), err)
	}
}

// Ensure that a source that hangs keeps no sample from the tiers.
func TestFlushBesideAHangingSource(t *testing.T) {
	m, from := newMemory(), &made{}
	s := Around(from, New([]Tier{m}, []int64{1 << 20}))
	for i := range 50 {
		read(t, s, i, 0)
	}
	from.hangs = make(chan struct{})
	go func() { _, _ = s.Read(context.Background(), 99, make([]byte, size)) }()
	if err := s.Close(); err != nil || m.held() != 50 {
		t.Errorf("%d written, %v", m.held(), err)
	}
	close(from.hangs)
}

// Ensure that no way of printing shows a secret.
func TestSecret(t *testing.T) {
	type settings struct{ Password Secret }
	s := settings{"hunter2"}
	text := fatal.Value(json.Marshal(map[string]any{"a": s, "b": Secret("hunter2")}))(t)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s, "p", s.Password)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", s, "p", s.Password)
	all := log.String() + fmt.Sprintf("%v %+v %#v %s %q %s %v %s", s, s, s, s, s, s.Password,
		map[string]any{"p": s.Password}, text)
	if strings.Contains(all, "hunter2") {
		t.Error(all)
	}
}

// taken is a memory that machines share: another one has just taken the right to load each sample.
type taken struct {
	*leased
	claimed func()
}

func (t *taken) Claim(context.Context, int, int, []byte) (int, Result) {
	t.claimed()
	return 0, Busy
}

// Ensure that the end of a load is told without the lock: who hears of it may ask again, or wait for a lock whose holder
// asks.
func TestEndOfALoadIsToldWithoutTheLock(t *testing.T) {
	shared := &taken{leased: &leased{memory: newMemory()}}
	p := NewPrograms(&made{}, New([]Tier{shared}, []int64{1 << 20}), time.Minute)
	told := 0
	shared.claimed = func() {
		p.WhenEnded([]int{1}, time.Minute, func() {
			told++
			if !p.mu.TryLock() {
				t.Error("told with the lock held")
				return
			}
			p.mu.Unlock()
		})
	}
	if p.Claim(t.Context(), 1, t) || told != 1 {
		t.Errorf("told %d times", told)
	}
	expect.NoError(t, p.Close())
}
