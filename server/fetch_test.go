package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

func shuffled(n int) []int64 {
	all := make([]int64, n)
	for k, i := range rand.Perm(n) {
		all[k] = int64(i)
	}
	return all
}

// Many clients fetch the same samples in different orders. Each sample is read once, and all
// clients get all samples.
func TestEachSampleIsReadOnce(t *testing.T) {
	const samples, size, clients = 2000, 500, 8
	m := newMemory(samples, size)
	m.latency = 200 * time.Microsecond
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 8}))
	var readers sync.WaitGroup
	for range clients {
		p, number, c := attachTo(t, s)
		readers.Go(func() {
			for batch := shuffled(samples); len(batch) > 0; batch = batch[250:] {
				if a := p.fetch(number, 0, batch[:250]...); a.refused != nil || len(a.failures) != 0 ||
					len(a.samples) != 0 {
					t.Errorf("%+v", a)
					return
				}
				for _, i := range batch[:250] {
					wantReady(t, c, int(i), size)
				}
			}
		})
	}
	readers.Wait()
	for i := range samples {
		expect.Equal(t, m.begun(i), 1, "reads of sample %d", i)
	}
}

// A sample without a slot comes as bytes, or as NO_SLOT to clients that want slots only.
func TestWithoutASlot(t *testing.T) {
	const samples, size = 30, 100000
	m := newMemory(samples, size)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: 4<<20 + 10*size})) // about ten slots
	p, number, seg := join(t, s)
	c := view(t, seg)
	slots := int(seg.Slots)
	if slots < 5 || slots > 20 {
		t.Fatalf("%d slots show too little", slots)
	}
	a := p.fetch(number, 0, shuffled(samples)...)
	if len(a.failures) != 0 || len(a.samples) != samples-slots {
		t.Fatalf("%d samples sent, %d failed; %d have slots", len(a.samples), len(a.failures), slots)
	}
	indices := shuffled(samples)
	a = p.fetch(number, 0, indices...)
	for k, i := range indices {
		if data, sent := a.samples[uint32(k)]; !sent {
			wantReady(t, c, int(i), size)
		} else if !bytes.Equal(data, sourcetest.Content(int(i), size)) {
			t.Errorf("sample %d came wrong", i)
		}
	}
	a = p.fetch(number, control.SlotsOnly, indices...)
	if len(a.samples) != 0 || len(a.failures) != samples-slots {
		t.Errorf("slots only: %d sent, %d failed", len(a.samples), len(a.failures))
	}
	for _, f := range a.failures {
		expect.Equal(t, f.Code, control.CodeNoSlot, "%+v", f)
	}
	// The same sample twice in a request, and from two clients at once.
	full := -1
	for i := range samples {
		if _, hit, _ := c.View(i); !hit {
			full = i
		}
	}
	if a = p.fetch(number, 0, int64(full), int64(full)); !bytes.Equal(a.samples[0], sourcetest.Content(full, size)) ||
		!bytes.Equal(a.samples[1], sourcetest.Content(full, size)) {
		t.Error("one sample asked for twice came wrong")
	}
}

// Ensure that each kind of error of a source has its code and its counter, and concerns its sample alone, of which nothing
// stays.
func TestSamplesThatFail(t *testing.T) {
	m := newMemory(20, 100)
	want := map[int64]struct {
		err  error
		code control.Code
		kind string // "": the source is not asked
		text string
	}{
		3:       {fmt.Errorf("read /data/3.jpg: %w", unix.EIO), control.CodeRead, "unavailable", "sample 3 (memory 3): read /data/3.jpg: input/output error"},
		4:       {fmt.Errorf("%w: /data/4.jpg", source.ErrChanged), control.CodeChanged, "changed", "/data/4.jpg"},
		5:       {fmt.Errorf("%w: /data/5.jpg", source.ErrCorrupt), control.CodeDamaged, "damaged", "/data/5.jpg"},
		6:       {unix.ENOENT, control.CodeRead, "missing", "memory 6"},
		7:       {unix.EACCES, control.CodeRead, "denied", "memory 7"},
		8:       {unix.EMFILE, control.CodeRead, "descriptors", "memory 8"},
		9:       {errors.New("something else"), control.CodeRead, "other", "something else"},
		-1:      {nil, control.CodeIndex, "", "-1"},
		20:      {nil, control.CodeIndex, "", "20"},
		1 << 62: {nil, control.CodeIndex, "", "4611686018427387904"},
	}
	indices := []int64{2, 10}
	for i, w := range want {
		if indices = append(indices, i); w.err != nil {
			m.fails[int(i)] = w.err
		}
	}
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p, number, seg := join(t, s)
	c := view(t, seg)
	a := p.fetch(number, 0, indices...)
	for position, i := range indices[2:] {
		w := want[i]
		if f := a.failures[uint32(position+2)]; f.Code != w.code || !strings.Contains(f.Text, w.text) {
			t.Errorf("sample %d: %+v, want %v %q", i, f, w.code, w.text)
		}
		if w.kind != "" {
			wantMetrics(t, s, fmt.Sprintf(`stocached_source_errors_total{cache="pets",kind=%q} 1`, w.kind))
			expect.Gives(c.State(int(i)))(t, cache.StateEmpty, i)
		}
	}
	expect.Equal(t, len(a.failures), len(want), "failures")
	wantReady(t, c, 2, 100)
	wantReady(t, c, 10, 100)
	// A failure is not remembered: the next read may succeed.
	m.mu.Lock()
	delete(m.fails, 3)
	m.mu.Unlock()
	p.wantFetched(number, 3)
	wantReady(t, c, 3, 100)
	if a := p.fetch(7, 0, 1); a.refused == nil || a.refused.Code != control.CodeNotFound {
		t.Errorf("a cache that was not attached to: %+v", a)
	}
	// All clients that wait for a sample hear of it, and each of them for each position.
	release := m.hold(t, 4)
	q := dial(t, s.Dir())
	q.attach("pets")
	ids := map[*peer]uint64{}
	for _, one := range []*peer{p, q} {
		ids[one] = one.startFetch(number, 4, 4)
		one.wantFetched(number, 2) // then the request before is in, too
	}
	release()
	for one, id := range ids {
		a := one.answer(id, 2)
		if a.failures[0].Code != control.CodeChanged || a.failures[1].Code != control.CodeChanged {
			t.Errorf("%+v", a)
		}
	}
}

// A cancelled request is answered at once. Samples that another client waits for are still read.
func TestCancel(t *testing.T) {
	m := newMemory(10, 100)
	release := m.hold(t, 1)
	m.hold(t, 2)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 4}))
	p, other := dial(t, s.Dir()), dial(t, s.Dir())
	number, seg := p.attach("pets")
	otherNumber, _ := other.attach("pets")
	id := p.startFetch(number, 0, 1, 2)
	c := view(t, seg)
	fatal.Until(t, "one is there, and both others are being read", func() bool {
		state, err := c.State(0)
		return err == nil && state == cache.StateReady && m.begun(1) == 1 && m.begun(2) == 1
	})
	otherID := other.startFetch(otherNumber, 1)
	// The answer of a later request shows that the other request has arrived.
	other.wantFetched(otherNumber, 5)
	p.send(control.AppendCancel(nil, id))
	a := p.answer(id, 3)
	if len(a.failures) != 2 || a.failures[1].Code != control.CodeCancelled ||
		a.failures[2].Code != control.CodeCancelled {
		t.Errorf("%+v", a)
	}
	fatal.Until(t, "the read without waiters is cancelled", func() bool { return m.cancelled.Load() == 1 })
	release()
	if a := other.answer(otherID, 1); len(a.failures) != 0 {
		t.Errorf("%+v", a)
	}
	wantReady(t, c, 1, 100)
	expect.Equal(t, m.begun(1), 1, "reads")
	p.send(control.AppendCancel(nil, 12345)) // unknown request: ignored
	p.wantFetched(number, 6)
}

// When a client leaves, the server drops what only that client requested.
func TestClientGoesAway(t *testing.T) {
	m := newMemory(100, 100)
	m.hold(t, 1)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	p, other := dial(t, s.Dir()), dial(t, s.Dir())
	number, _ := p.attach("pets")
	otherNumber, _ := other.attach("pets")
	p.startFetch(number, 1, 2, 3, 4, 5, 6)
	fatal.Until(t, "it is being read", func() bool { return m.begun(1) == 1 })
	p.socket.Close()
	other.wantFetched(otherNumber, 50, 51)
	fatal.Until(t, "the client is forgotten", func() bool { return s.Connections() == 1 })
	for i := 2; i <= 6; i++ {
		expect.Equal(t, m.begun(i), 0, "reads of sample %d for a client that is gone", i)
	}
}

// A client that asks for little does not wait for one that asked for much before.
func TestFair(t *testing.T) {
	const much = 4000
	m := newMemory(5000, 100)
	release := m.hold(t, 0)
	read := sequence(m)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	greedy, modest := dial(t, s.Dir()), dial(t, s.Dir())
	a, _ := greedy.attach("pets")
	b, _ := modest.attach("pets")
	id := greedy.startFetch(a, upTo(much)...)
	fatal.Until(t, "the first is being read", func() bool { return m.begun(0) == 1 })
	mine := modest.startFetch(b, 4500, 4501, 4502)
	fatal.Until(t, "both are queued", func() bool { return s.Waiters("pets") == much-1+3 })
	release()
	modest.answer(mine, 3)
	greedy.answer(id, much)
	if before := slices.Index(read(), 4502); before > 10 { // round robin
		t.Errorf("%d samples of the greedy client were read before 3 of the modest one", before)
	}
}

// Prefetched samples are read when no fetch waits. A PREFETCH is answered at once.
func TestPrefetch(t *testing.T) {
	m := newMemory(100, 100)
	release := m.hold(t, 0)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	p, number, seg := join(t, s)
	first := p.startFetch(number, 0)
	fatal.Until(t, "the first is being read", func() bool { return m.begun(0) == 1 })
	id := p.id()
	p.send(control.AppendFetch(nil, control.Prefetch, id,
		control.FetchBody{Cache: number, Indices: []int64{10, 11, 12}}))
	h, body := p.receive()
	if queued, err := control.ParsePrefetched(body); h.Request != id || queued != 3 || err != nil {
		t.Errorf("%+v: %d queued, %v", h, queued, err)
	}
	second := p.startFetch(number, 20)
	time.Sleep(5 * time.Millisecond)
	// whichever comes first, the prefetch cannot end before the fetch: otherwise the fetch would
	// get no answer
	m.hold(t, 10)
	release()
	p.answer(first, 1)
	p.answer(second, 1)
	wantReady(t, view(t, seg), 20, 100)
}

// The memory of a large PREFETCH is free again when its last sample is read.
func TestPrefetchGivesItsMemoryBack(t *testing.T) {
	const samples = 20_000
	m := newMemory(samples, 100)
	release := m.hold(t, samples-1)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p, number, _ := join(t, s)
	fatal.Equal(t, p.prefetch(number, shuffled(samples)...), samples, "queued samples")
	isFree := func() bool {
		_, text := ask(t, s, "/metrics")
		return strings.Contains(text, `stocached_client_bytes{kind="requests"} 0`+"\n")
	}
	if isFree() {
		t.Error("a request under way has no memory")
	}
	release()
	fatal.Until(t, "the memory of the request is free", isFree)
}
