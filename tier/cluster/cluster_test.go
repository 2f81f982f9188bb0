package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/clock"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// counted is a source of samples of one size that counts its reads.
type counted struct {
	samples, size int
	fingerprint   string
	wait          time.Duration
	reads         []atomic.Int32
	fail          atomic.Bool
}

func newCounted(samples, size int) *counted {
	return &counted{samples: samples, size: size, fingerprint: "counted-1", reads: make([]atomic.Int32, samples)}
}

func (c *counted) Info() source.Info {
	return source.Info{Kind: "counted", Samples: c.samples, Fingerprint: c.fingerprint,
		Schema: shm.Schema{SampleBytes: uint64(c.size)}}
}
func (c *counted) Size(i int) (int, error) {
	if i < 0 || i >= c.samples {
		return 0, source.BadIndex(i, c.samples)
	}
	return c.size, nil
}
func (c *counted) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if err := source.CheckRead(ctx, i, c.samples, c.size, dst); err != nil {
		return 0, err
	}
	c.reads[i].Add(1)
	time.Sleep(c.wait)
	if c.fail.Load() {
		return 0, fmt.Errorf("%w: on purpose", source.ErrCorrupt)
	}
	return copy(dst, content(i, c.size)), nil
}
func (c *counted) Where(i int) string { return fmt.Sprint("sample ", i) }
func (c *counted) Close() error       { return nil }

// total returns how many reads there were, and the most of one sample.
func (c *counted) total() (n, most int) {
	for k := range c.reads {
		r := int(c.reads[k].Load())
		n, most = n+r, max(most, r)
	}
	return n, most
}

var contents sync.Map // the contents of [2]int

func content(i, size int) []byte {
	if b, ok := contents.Load([2]int{i, size}); ok {
		return b.([]byte)
	}
	b := make([]byte, size)
	defer contents.Store([2]int{i, size}, b)
	r := rand.New(rand.NewPCG(uint64(i), 1))
	for k := range b {
		b[k] = byte(r.Uint32())
	}
	return b
}

// host is a source with a tier, as a server has it.
type host struct {
	source.Source
	tier *Tier
	set  *tier.Set
	log  *lines
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// connect puts a tier before a source. It waits until the tier knows its servers, if wait is set.
func connect(t testing.TB, from source.Source, wait bool, servers []*redistest.Server, more source.Settings) *host {
	t.Helper()
	settings := source.Settings{"addresses": addresses(servers), "timeout": "20s"} // an engine on a busy machine is slow
	for key, value := range more {
		settings[key] = value
	}
	h := &host{log: &lines{}}
	opened, err := Open(settings, tier.About{Cache: "c", Info: from.Info(),
		Log: slog.New(slog.NewTextHandler(h.log, nil))})
	fatal.If(t, err)
	h.tier = opened.(*Tier)
	h.set = tier.New([]tier.Tier{opened}, []int64{64 << 20})
	h.Source = tier.Around(from, h.set)
	t.Cleanup(func() { expect.NoError(t, h.Close()) })
	if wait {
		fatal.Until(t, "the tier finds its servers", func() bool { return h.tier.engine.Load() != nil })
	}
	return h
}

func addresses(servers []*redistest.Server) (all []any) {
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}

// written waits until all writes are done.
func (h *host) written(t testing.TB) {
	t.Helper()
	fatal.Until(t, "the queue is empty", func() bool { return h.set.Status()[0].Queued == 0 })
}

// read reads samples concurrently and compares them.
func (h *host) read(t testing.TB, size int, indices ...int) {
	t.Helper()
	var all sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, i := range indices {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			dst := make([]byte, size+tier.Spare*(i%2)) // with room for the tier, and without
			n, err := h.Read(context.Background(), i, dst)
			if err != nil || !bytes.Equal(dst[:n], content(i, size)) {
				t.Errorf("sample %d: %d bytes, %v", i, n, err)
			}
		})
	}
	all.Wait()
}

// hitsAgain waits until reads of all samples leave the source alone.
func (h *host) hitsAgain(t *testing.T, from *counted) {
	t.Helper()
	fatal.Until(t, "each sample is a hit again", func() bool {
		before, _ := from.total()
		h.read(t, from.size, upTo(from.samples)...)
		h.written(t)
		after, _ := from.total()
		return after == before
	})
}

func upTo(n int) []int {
	all := make([]int, n)
	for k := range all {
		all[k] = k
	}
	return all
}

// engines runs a test on a single server and on a cluster.
func engines(t *testing.T, test func(t *testing.T, servers []*redistest.Server)) {
	t.Run("single", func(t *testing.T) { test(t, []*redistest.Server{redistest.Start(t)}) })
	t.Run("cluster", func(t *testing.T) { test(t, redistest.Cluster(t, 3)) })
}

// Ensure that what one host has read is a hit of another one.
func TestShared(t *testing.T) {
	engines(t, func(t *testing.T, servers []*redistest.Server) {
		const n, size = 300, 5000
		from := newCounted(n, size)
		a := connect(t, from, true, servers, nil)
		a.read(t, size, upTo(n)...)
		a.written(t)
		b := connect(t, from, true, servers, nil)
		b.read(t, size, upTo(n)...)
		if total, most := from.total(); total != n || most != 1 {
			t.Errorf("%d reads, at most %d of one sample", total, most)
		}
		sa, sb := a.tier.Status(), b.tier.Status()
		if sa.Misses != n || sa.Hits != 0 || sa.Writes != n || sa.WriteBytes != n*size || sb.Hits != n || sb.HitBytes != n*size || sb.Misses != 0 ||
			sa.Dropped+sb.Dropped+sa.LeftOut+sb.LeftOut+sa.Openings+sb.Openings != 0 {
			t.Errorf("%+v\n%+v", sa, sb)
		}
		if leases, err := servers[0].Client().Keys(context.Background(), "*:lease").Result(); err != nil || len(leases) > 0 {
			t.Errorf("leases are left: %v, %v", leases, err)
		}
	})
}

// Ensure that the rights that docs/spec/tiers.md names are enough, on a cluster with a password.
func TestRights(t *testing.T) {
	text := fatal.Value(os.ReadFile("../../docs/spec/tiers.md"))(t)
	_, rights, _ := strings.Cut(string(text), "ACL SETUSER ")
	rights, _, _ = strings.Cut(rights, "\n")
	servers := redistest.Cluster(t, 3)
	for _, s := range servers {
		command := []any{"ACL", "SETUSER"}
		for _, word := range strings.Fields(rights) {
			command = append(command, word)
		}
		fatal.If(t, s.Client().Do(context.Background(), command...).Err())
	}
	const n, size = 100, 3000
	from := newCounted(n, size)
	user := source.Settings{"user": "stocached", "password": "PASSWORD"}
	a, b := connect(t, from, true, servers, user), connect(t, from, true, servers, user)
	a.tier.compare()
	a.read(t, size, upTo(n)...)
	a.written(t)
	b.read(t, size, upTo(n)...)
	for _, node := range b.tier.engine.Load().all() {
		node.measure()
	}
	if total, _ := from.total(); total != n {
		t.Errorf("%d reads", total)
	}
	if p := append(tier.Problems(a.set.Status()), tier.Problems(b.set.Status())...); len(p) > 0 {
		t.Error(p)
	}
}

// Ensure that hosts that read at the same time read each sample from the source once.
func TestOnceAtTheSameTime(t *testing.T) {
	engines(t, func(t *testing.T, servers []*redistest.Server) {
		const n, size = 300, 5000
		from := newCounted(n, size)
		from.wait = 3 * time.Millisecond
		var hosts []*host
		for range 3 {
			hosts = append(hosts, connect(t, from, true, servers, nil))
		}
		var all sync.WaitGroup
		for k, h := range hosts {
			order := upTo(n)
			if k > 0 { // the first two in other orders
				rand.New(rand.NewPCG(uint64(k), 7)).Shuffle(n, func(a, b int) { order[a], order[b] = order[b], order[a] })
			}
			all.Go(func() { h.read(t, size, order...) })
		}
		all.Wait()
		if total, most := from.total(); total != n || most != 1 {
			t.Errorf("%d reads, at most %d of one sample", total, most)
		}
		waited := uint64(0)
		for _, h := range hosts {
			waited += h.tier.Status().Waited
		}
		if waited == 0 || waited > 2*n { // each sample is loaded by one of three
			t.Errorf("%d reads waited for another host", waited)
		}
	})
}

// Ensure that a host that dies during a load delays others only until its lease ends. A load that fails frees
// its lease at once, and one that is longer than a lease keeps it.
func TestLeases(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t)}
	const size = 1000
	from := newCounted(10, size)
	h := connect(t, from, true, servers, source.Settings{"lease": "600ms"})
	other := connect(t, from, true, servers, source.Settings{"lease": "600ms"})
	c := servers[0].Client()
	ctx := context.Background()
	fatal.If(t, c.Set(ctx, h.tier.keys.lease(1), "of the dead", 500*time.Millisecond).Err())
	began := time.Now()
	h.read(t, size, 1)
	if took := time.Since(began); took < 300*time.Millisecond || took > 3*time.Second {
		t.Errorf("the lease of the dead delayed the read by %v", took)
	}
	from.fail.Store(true)
	if _, err := h.Read(ctx, 2, make([]byte, size)); err == nil {
		t.Error("no error")
	}
	from.fail.Store(false)
	began = time.Now()
	other.read(t, size, 2)
	if took := time.Since(began); took > 300*time.Millisecond {
		t.Errorf("a failed load delayed the next one by %v", took)
	}
	from.wait = 1500 * time.Millisecond // 2.5 leases
	var both sync.WaitGroup
	both.Go(func() { h.read(t, size, 3) })
	both.Go(func() { time.Sleep(50 * time.Millisecond); other.read(t, size, 3) })
	both.Wait()
	expect.Equal(t, from.reads[3].Load(), 1, "loads of a sample that takes longer than a lease")
	// One that renews and never ends holds others for three leases.
	from.wait = 0
	stop := make(chan struct{})
	var renews sync.WaitGroup
	renews.Go(func() {
		for {
			c.Set(ctx, h.tier.keys.lease(4), "of one that hangs", time.Second)
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	time.Sleep(50 * time.Millisecond)
	began = time.Now()
	h.read(t, size, 4)
	if took := time.Since(began); took < 1500*time.Millisecond || took > 4*time.Second {
		t.Errorf("a load that hangs delayed the read by %v", took)
	}
	close(stop)
	renews.Wait()
	if s := h.tier.Status(); s.GaveUp != 1 {
		t.Errorf("%+v", s)
	}
	canceled, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	c.Set(ctx, h.tier.keys.lease(5), "another", time.Minute)
	if _, err := h.Read(canceled, 5, make([]byte, size)); err == nil {
		t.Error("a read that waits does not end with its context")
	}
}

// Ensure that a killed node costs its share of hits only, and that it is used again when it is back.
func TestNodeKilled(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	const n, size = 300, 5000
	from := newCounted(n, size)
	a := connect(t, from, true, servers, nil)
	a.read(t, size, upTo(n)...)
	a.written(t)
	servers[1].Kill()
	b := connect(t, from, true, []*redistest.Server{servers[1], servers[0]}, nil) // asks the dead one first
	began := time.Now()
	a.read(t, size, upTo(n)...)
	b.read(t, size, upTo(n)...)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("reads took %v", took)
	}
	total, _ := from.total()
	if lost := total - n; lost < 2*n/6 || lost > 2*n/2 {
		t.Errorf("%d of %d reads went to the source, a third of them is the share of a node", lost, 2*n)
	}
	if p := strings.Join(tier.Problems(a.set.Status()), "\n"); !strings.Contains(p, servers[1].Addr+" is left out") ||
		!strings.Contains(p, "addresses: ") || strings.Count(p, "left out") != 1 {
		t.Error(p)
	}
	servers[1].Begin() // empty, and in the cluster still
	fatal.Until(t, "the node is back", func() bool { return len(tier.Problems(a.set.Status()))+len(tier.Problems(b.set.Status())) == 0 })
	time.Sleep(1500 * time.Millisecond) // the cluster takes it in again
	a.hitsAgain(t, from)
	expect.Says(t, a.log.String(), "is back")
}

// Ensure that a tier goes on when its single server becomes one of a cluster, and back.
func TestSingleBecomesCluster(t *testing.T) {
	s := redistest.Start(t)
	const n, size = 50, 3000
	from := newCounted(n, size)
	h := connect(t, from, true, []*redistest.Server{s}, nil)
	for _, inCluster := range []bool{true, false} {
		h.read(t, size, upTo(n)...)
		h.written(t)
		s.Kill()
		h.read(t, size, upTo(n)...)
		s.Become(inCluster)
		if inCluster {
			redistest.Form(t, []*redistest.Server{s}, 0)
		}
		h.hitsAgain(t, from)
	}
}

// Ensure that a tier without reads notices by its own requests that its server is in a cluster of several now, and
// finds all of them.
func TestServerJoinsClusterWithoutReads(t *testing.T) {
	defer func(d time.Duration) { compareEvery = d }(compareEvery)
	compareEvery = 100 * time.Millisecond
	const n, size = 60, 3000
	from := newCounted(n, size)
	first := redistest.Start(t)
	h := connect(t, from, true, []*redistest.Server{first}, nil)
	h.read(t, size, upTo(n)...)
	h.written(t)
	alone := h.tier.engine.Load()
	first.Kill()
	servers := []*redistest.Server{first}
	for len(servers) < 3 {
		s := redistest.Start(t)
		s.Kill()
		servers = append(servers, s)
	}
	for _, s := range servers {
		s.Become(true)
	}
	slot := fatal.Value(first.Client().ClusterKeySlot(context.Background(), cacheKey("c")).Result())(t)
	// The second server gets the slots of the key that the tier writes without reads, so the first one answers MOVED.
	redistest.Form(t, servers, (1+3-int(slot)*3/16384)%3)
	fatal.Until(t, "the tier finds the cluster", func() bool {
		e := h.tier.engine.Load()
		return e != nil && e != alone && e.cluster != nil
	})
	h.read(t, size, upTo(n)...)
	h.written(t)
	before, _ := from.total()
	h.read(t, size, upTo(n)...)
	if after, _ := from.total(); after != before || len(h.tier.engine.Load().all()) != 3 {
		t.Errorf("%d reads of the source, %d nodes", after-before, len(h.tier.engine.Load().all()))
	}
}

// Ensure that all reads together pay the timeout of a node that stops once for each opening.
func TestStoppedNode(t *testing.T) {
	servers := redistest.Cluster(t, 3, "--cluster-node-timeout", "60000") // the others do not notice
	const n, size, timeout = 300, 20000, 400 * time.Millisecond
	from := newCounted(n, size)
	h := connect(t, from, true, servers, source.Settings{"timeout": timeout.String()})
	h.read(t, size, upTo(n)...)
	h.written(t)
	servers[2].Stop()
	defer servers[2].Continue()
	began := time.Now()
	h.read(t, size, upTo(n)...) // 32 at a time
	first := time.Since(began)
	if first < timeout/2 || first > timeout+timeout {
		t.Errorf("reads took %v while a node did not answer for the first time; the timeout is %v", first, timeout)
	}
	began = time.Now()
	h.read(t, size, upTo(n)...)
	if took := time.Since(began); took > timeout/2 {
		t.Errorf("reads took %v while the node is left out", took)
	}
	expect.Says(t, strings.Join(tier.Problems(h.set.Status()), "\n"), "timeout: no answer in 400ms")
	time.Sleep(3 * timeout) // it is tried in the background, and stays out
	if s := h.tier.Status(); s.Openings != 1 {
		t.Errorf("%+v", s)
	}
	servers[2].Continue()
	fatal.Until(t, "the node is back", func() bool { return len(tier.Problems(h.set.Status())) == 0 })
	before, _ := from.total()
	h.read(t, size, upTo(n)...)
	if after, _ := from.total(); after != before {
		t.Errorf("%d reads of the source after the node is back", after-before)
	}
}

// Ensure that a node that is left out ends all requests to it at once: those under way, and those that wait for a
// pipeline.
func TestOpeningEndsRequests(t *testing.T) {
	server := redistest.Start(t)
	// A tier without its goroutines, which send requests too. No request of it ends by its own timeout here.
	made, err := open(source.Settings{"addresses": addresses([]*redistest.Server{server}), "timeout": "1h"},
		tier.About{Cache: "c", Info: newCounted(1, 1000).Info(), Log: slog.New(slog.DiscardHandler)})
	fatal.If(t, err)
	defer made.stop()
	e := fatal.Value(made.connect(t.Context()))(t)
	defer e.close()
	n := e.single
	server.Stop()
	defer server.Continue()
	var sent []*request
	reading := func() (count int) { // pipelines that wait for an answer
		n.mu.Lock()
		defer n.mu.Unlock()
		for c := range n.conns {
			if c.deadline.Load() > int64(clock.Now()) {
				count++
			}
		}
		return count
	}
	for k := range pipelines + 1 {
		r := &request{commands: []redis.Cmder{redis.NewStringCmd(t.Context(), "get", "key")}}
		n.send(r)
		sent = append(sent, r)
		if k < pipelines {
			fatal.Until(t, "the request is under way", func() bool { return reading() > k })
		}
	}
	n.fail(errors.New("on purpose"))
	fatal.Until(t, "all requests end", func() bool {
		for _, r := range sent {
			select {
			case <-r.done:
			default:
				return false
			}
		}
		return true
	})
	for k, r := range sent {
		if r.answered {
			t.Errorf("request %d has an answer", k)
		}
	}
}

// Ensure that a value that is not the sample is noticed, counted, removed and loaded again.
func TestPoison(t *testing.T) {
	engines(t, func(t *testing.T, servers []*redistest.Server) {
		const n, size = 64, 3000
		from := newCounted(n, size)
		h := connect(t, from, true, servers, nil)
		h.read(t, size, upTo(n)...)
		h.written(t)
		ctx := context.Background()
		value := func(i int) []byte { return h.tier.keys.seal(i, bytes.Clone(content(i, size))) }
		set := func(i int, v any) {
			t.Helper()
			c := h.tier.node(h.tier.keys.sample(i)).client
			fatal.If(t, c.Set(ctx, h.tier.keys.sample(i), v, 0).Err())
		}
		poisons := 0
		for bit := range 200 { // each kind of byte
			v := value(0)
			at := bit * len(v) / 200
			if bit >= 200-trailer {
				at = len(v) - (200 - bit)
			}
			v[at] ^= 1 << (bit % 8)
			set(0, v)
			poisons++
			h.read(t, size, 0)
			h.written(t)
		}
		for _, v := range [][]byte{value(0)[:size], value(0)[:100], {}, append(value(0), 1),
			append(value(0), make([]byte, 5000)...),
			value(1), h.tier.keys.seal(1, bytes.Clone(content(0, size))), h.tier.keys.seal(0, bytes.Clone(content(0, size-1))),
			keysOf("of another dataset").seal(0, bytes.Clone(content(0, size))), bytes.Repeat([]byte{0}, size+trailer)} {
			set(0, v)
			poisons++
			h.read(t, size, 0)
			h.written(t)
		}
		key := h.tier.keys.sample(2)
		c := h.tier.node(key).client
		fatal.If(t, c.Del(ctx, key).Err())
		if err := c.HSet(ctx, key, "a", "b").Err(); err != nil { // another type
			t.Fatal(err)
		}
		poisons++
		h.read(t, size, 2)
		h.written(t)
		s := h.tier.Status()
		if s.Poisoned != uint64(poisons) || s.Openings != 0 || s.LeftOut != 0 {
			t.Errorf("%d values were poisoned: %+v", poisons, s)
		}
		// Values that are too long, among others of one pipeline.
		for i := 0; i < n; i += 3 {
			set(i, append(value(i), make([]byte, 100)...))
			poisons++
		}
		h.read(t, size, upTo(n)...)
		h.written(t)
		before, _ := from.total()
		h.read(t, size, upTo(n)...)
		if after, _ := from.total(); after != before {
			t.Errorf("%d values are not loaded again", after-before)
		}
		if s := h.tier.Status(); s.Poisoned != uint64(poisons) || s.Openings != 0 {
			t.Errorf("%d values were poisoned: %+v", poisons, s)
		}
		if lines := strings.Count(h.log.String(), "is not the sample"); lines < 1 || lines > 5 {
			t.Errorf("%d lines of the log for %d values", lines, poisons)
		}
	})
}

// Ensure that a full engine gets no writes for a while, keeps what it has, and costs no read.
func TestFull(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t, "--maxmemory", "4mb")}
	const n, size = 200, 50000
	from := newCounted(n, size)
	h := connect(t, from, true, servers, nil)
	h.read(t, size, upTo(n)...)
	h.written(t)
	first := h.set.Status()[0].Refused // writes that were refused of all under way
	h.read(t, size, upTo(n)...)
	s := h.set.Status()[0]
	if s.Writes < 10 || s.Hits < s.Writes*9/10 || first == 0 || s.Refused > 3*first+50 ||
		s.Dropped == 0 || s.Openings != 0 || !s.Nodes[0].Full {
		t.Errorf("%+v", s)
	}
	fatal.If(t, servers[0].Client().ConfigSet(context.Background(), "maxmemory", "100mb").Err())
	fatal.Until(t, "the engine gets writes again", func() bool {
		h.read(t, size, upTo(n)...)
		h.written(t)
		return h.set.Status()[0].Writes >= n
	})
}

// Ensure that a host whose cache has another fingerprint shares nothing, and says so.
func TestOtherFingerprint(t *testing.T) {
	defer func(d time.Duration) { compareEvery = d }(compareEvery)
	compareEvery = 100 * time.Millisecond
	servers := []*redistest.Server{redistest.Start(t)}
	a, b := newCounted(50, 2000), newCounted(50, 2000)
	b.fingerprint = "counted-2"
	ha, hb := connect(t, a, true, servers, nil), connect(t, b, true, servers, nil)
	ha.read(t, 2000, upTo(50)...)
	ha.written(t)
	hb.read(t, 2000, upTo(50)...)
	if n, _ := b.total(); n != 50 {
		t.Errorf("%d reads", n)
	}
	fatal.Until(t, "both say so", func() bool {
		return strings.Contains(strings.Join(tier.Problems(ha.set.Status()), ""), "fingerprint counted-2, this one has counted-1") &&
			strings.Contains(strings.Join(tier.Problems(hb.set.Status()), ""), "fingerprint counted-1, this one has counted-2")
	})
}

// Ensure that closing writes what is queued, and that reads after it fail as those of a source.
func TestClose(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t)}
	from := newCounted(200, 50000)
	connect(t, from, true, servers, nil).read(t, 50000, 0) // starts what go-redis has once in a process
	before := goleak.IgnoreCurrent()
	h := connect(t, from, true, servers, nil)
	h.read(t, 50000, upTo(200)...)
	fatal.If(t, h.Close())
	if s := h.set.Status()[0]; s.Writes+s.Hits < 200 || s.Dropped > 0 {
		t.Errorf("%+v", s)
	}
	expect.Fails(h.Read(context.Background(), 0, make([]byte, 50000)))(t, source.ErrClosed)
	goleak.VerifyNone(t, before)
}
