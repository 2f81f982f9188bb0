package server_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// sizes are sources of samples of one size, and of different sizes.
var sizes = map[string]bool{"one size": false, "variable": true}

// newMemoryOf is newMemory of samples of one size or of different sizes.
func newMemoryOf(samples, bytes int, variable bool) *memory {
	m := newMemory(samples, bytes)
	m.variable = variable
	return m
}

// sizeFor returns the size of a cache of so many slots, or with room for about as many samples.
func sizeFor(t *testing.T, m *memory, slots int) uint64 {
	t.Helper()
	if m.variable {
		lengths := uint64(0)
		for i := range m.samples {
			lengths += uint64(m.size(i))
		}
		g, err := shm.NewGeometry(shm.FlagVariable, shm.PolicyLRU, uint64(m.samples), 1, shm.MaxChainStride,
			shm.DefaultClientRecords, 0)
		fatal.If(t, err)
		return g.PayloadOffset + (lengths*uint64(slots)/uint64(m.samples)+shm.RegionAlign-1)&^(shm.RegionAlign-1)
	}
	o := shm.Options{Samples: uint64(m.samples), Fields: m.Info().Schema.Fields, Slots: uint64(slots),
		Policy: shm.PolicyCost}
	n := fatal.Value(o.SegmentBytes())(t)
	return n
}

// evicting starts a server with one cache of so many slots.
func evicting(t *testing.T, m *memory, p shm.Policy, slots, parallel int) *server.Server {
	t.Helper()
	s, _ := start(t, options(t, m, server.CacheOptions{Size: sizeFor(t, m, slots), Policy: p, Parallel: parallel}))
	if _, seg := dial(t, s.Dir()).attach("pets"); seg.Variable() != m.variable || seg.Policy != p ||
		!m.variable && (int(seg.Slots) < slots || int(seg.Slots) > slots+3) {
		t.Fatalf("%d slots, want about %d", seg.Slots, slots)
	}
	return s
}

// wantSent checks that an answer has the bytes of all samples.
func wantSent(t *testing.T, m *memory, a answer, indices []int64) {
	t.Helper()
	if len(a.failures) != 0 || len(a.samples) != len(indices) || a.refused != nil {
		t.Errorf("%d of %d samples came; %+v, %v", len(a.samples), len(indices), a.failures, a.refused)
		return
	}
	for k, i := range indices {
		if !bytes.Equal(a.samples[uint32(k)], sourcetest.Content(int(i), m.size(int(i)))) {
			t.Errorf("sample %d came wrong", i)
		}
	}
}

// Ensure that with SEND the server sends every sample, READY or not, and reads only the others.
func TestSend(t *testing.T) {
	m := newMemory(30, 1000)
	m.fails[29] = unix.EIO
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p, number, seg := join(t, s)
	p.wantFetched(number, upTo(10)...)
	wantSent(t, m, p.fetch(number, control.Send, upTo(20)...), upTo(20))
	wantSent(t, m, p.fetch(number, control.Send, 3, 25, 3, 25), []int64{3, 25, 3, 25})
	c := view(t, seg)
	for i := range 20 {
		wantReady(t, c, i, 1000)
	}
	a := p.fetch(number, control.Send, 1, 29, 30)
	if len(a.samples) != 1 || a.failures[1].Code != control.CodeRead || a.failures[2].Code != control.CodeIndex {
		t.Errorf("%+v", a)
	}
	expect.Equal(t, m.total(), 20+1+1, "reads")
	// It comes while a read for another client runs, which keeps no bytes: they come from the cache.
	release := m.hold(t, 22)
	q := dial(t, s.Dir())
	q.attach("pets")
	first := p.startFetch(number, 22)
	fatal.Until(t, "it is being read", func() bool { return m.begun(22) == 1 })
	id := q.id()
	q.send(control.AppendFetch(nil, control.Fetch, id,
		control.FetchBody{Cache: number, Flags: control.Send, Indices: []int64{22}}))
	q.wantFetched(number, 1) // then the request before is in, too
	release()
	wantSent(t, m, q.answer(id, 1), []int64{22})
	if a := p.answer(first, 1); len(a.failures)+len(a.samples) != 0 || m.begun(22) != 1 {
		t.Errorf("%+v, after %d reads", a, m.begun(22))
	}
	// No client has both flags.
	p.send(control.AppendFetch(nil, control.Fetch, p.id(),
		control.FetchBody{Cache: number, Flags: control.Send | control.SlotsOnly, Indices: upTo(1)}))
	if e := p.last(); e == nil || e.Code != control.CodeProtocol || !strings.Contains(e.Text, "flags 0x3") {
		t.Error(e)
	}
}

// Ensure that the server sends samples which UNSTORED asks for and stores none of them, unless another
// request waits for one.
func TestUnstored(t *testing.T) {
	m := newMemory(30, 1000)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p, number, c := attachTo(t, s)
	p.wantFetched(number, upTo(5)...)
	wantSent(t, m, p.fetch(number, control.Unstored, upTo(20)...), upTo(20))
	for i := range 20 {
		if state, err := c.State(i); err != nil || (state == cache.StateReady) != (i < 5) {
			t.Errorf("sample %d: %v, %v", i, state, err)
		}
	}
	release := m.hold(t, 22)
	q, other, _ := join(t, s)
	unstored := p.id()
	p.send(control.AppendFetch(nil, control.Fetch, unstored,
		control.FetchBody{Cache: number, Flags: control.Unstored, Indices: []int64{21, 22}}))
	fatal.Until(t, "it is being read", func() bool { return m.begun(22) == 1 })
	stored := q.startFetch(other, 22, 23)
	q.wantFetched(other, 1) // then the request before is in, too
	release()
	wantSent(t, m, p.answer(unstored, 2), []int64{21, 22})
	a := q.answer(stored, 2)
	if state, _ := c.State(22); len(a.failures) != 0 || state == cache.StateReady == (len(a.samples) == 1) {
		t.Errorf("%+v, and the sample is %v", a, state) // it came during the read, so its bytes may come unstored
	}
	wantReady(t, c, 23, 1000)
}

// Ensure that a segment says how many samples the disk below it holds, and that UNSTORED keeps samples off that disk.
func TestDiskOfAServedCache(t *testing.T) {
	m, dir := newMemory(300, 1000), t.TempDir()
	s, stop := start(t, options(t, m, server.CacheOptions{Size: 5 << 20, Tiers: []source.Settings{
		{"kind": "disk", "dir": dir, "size": (2 << 20) + 200<<10}}}))
	p, number, seg := join(t, s)
	if below := seg.Below().Load(); below < 190 || below > 205 {
		t.Errorf("%d samples on the disk", below)
	}
	onDisk := func(i int) bool {
		file, _ := os.ReadFile(filepath.Join(dir, "pets.tier"))
		return bytes.Contains(file, sourcetest.Content(i, 1000))
	}
	next := int64(100)
	fatal.Until(t, "the tier has its file", func() bool {
		p.fetch(number, 0, next)
		next++
		return onDisk(int(next - 2))
	})
	p.fetch(number, 0, upTo(20)...)
	wantSent(t, m, p.fetch(number, control.Unstored, upTo(50)...), upTo(50))
	stop() // it writes what is in the queue
	for i := range 50 {
		expect.Equal(t, onDisk(i), (i < 20), "sample %d is on the disk", i)
	}
}

// Ensure that samples which SEND asks for wait for a slow client within the limits of all others: of
// a cache that has them, and of one that evicts all but four.
func TestSendToASlowReader(t *testing.T) {
	const samples, size = 150, 1 << 20
	for n, slots := range []int{samples, 4, 4} {
		if testing.Short() && n < 2 {
			continue // TestSendAmongEvictors sends hits and samples of one size, too
		}
		m := newMemoryOf(samples, size, n == 2)
		s := evicting(t, m, shm.PolicyRandom, slots, 4)
		p, other := dial(t, s.Dir()), dial(t, s.Dir())
		number, _ := p.attach("pets")
		otherNumber, _ := other.attach("pets")
		if a := p.fetch(number, 0, upTo(samples)...); slots == samples && len(a.samples) != 0 {
			t.Fatalf("%+v", a)
		}
		id := p.id()
		indices := shuffled(samples)
		p.send(control.AppendFetch(nil, control.Fetch, id,
			control.FetchBody{Cache: number, Flags: control.Send, Indices: indices}))
		most := 0
		fatal.Until(t, "the limit is reached", func() bool {
			most = max(most, s.Waiting())
			return most > control.MaxWaitingSend-4*size
		})
		if a := other.fetch(otherNumber, control.Send, 7, 8); len(a.samples) != 2 {
			t.Errorf("another client: %d samples", len(a.samples))
		}
		for range 50 {
			most = max(most, s.Waiting())
			time.Sleep(time.Millisecond)
		}
		if most > control.MaxWaitingSend {
			t.Errorf("%d bytes waited for it", most)
		}
		wantSent(t, m, p.answer(id, samples), indices)
	}
}

// Ensure that one FETCH with SEND brings every sample of a cache of 4 slots, while others evict all
// the time: no client needs a third round.
func TestSendAmongEvictors(t *testing.T) {
	const samples, size, batch = 500, 1024, 64
	all := shm.EvictingPolicies()
	for n := range 2 * len(all) {
		p, variable := all[n/2], n%2 == 1
		t.Run(fmt.Sprint(p, map[bool]string{true: ", variable"}[variable]), func(t *testing.T) {
			m := newMemoryOf(samples, size, variable)
			s := evicting(t, m, p, 4, 4)
			end := time.Now().Add(100 * time.Millisecond)
			var all sync.WaitGroup
			for k := range 4 {
				one, number, seg := join(t, s)
				c := view(t, seg)
				if p == shm.PolicyPlanned { // it reads other samples than it says
					one.send(control.AppendAnnounce(nil, one.id(), control.AnnounceBody{Cache: number, Owner: c.Owner(),
						Kind: uint32(order.Shuffled), Seed: uint64(k), Ranks: 1, Samples: samples}))
					if h, _ := one.receive(); h.Type != control.Announced {
						t.Fatalf("%v", h)
					}
				}
				all.Go(func() {
					dst := make([]byte, size)
					random := rand.New(rand.NewPCG(1, uint64(k)))
					for round := 0; (round < 4 || time.Now().Before(end)) && !t.Failed(); round++ {
						indices := make([]int64, batch)
						for k := range indices {
							indices[k] = random.Int64N(samples)
							if _, _, err := c.Get(int(indices[k]), dst); err != nil { // counts for its plan
								t.Error(err)
							}
						}
						if k == 0 { // which asks without the flag too, and evicts on its own
							a := one.fetch(number, 0, indices...)
							expect.Equal(t, len(a.failures), 0, "%+v", a.failures)
							i := random.IntN(samples)
							expect.Works(c.SetLoaded(i, [][]byte{sourcetest.Content(i, m.size(i))}, 0, time.Millisecond))(t)
						}
						wantSent(t, m, one.fetch(number, control.Send, indices...), indices)
					}
				})
			}
			all.Wait()
			_, _, seg := join(t, s)
			c := view(t, seg)
			stats, err := c.Stats()
			least := uint64(100)
			switch p {
			case shm.PolicyCost:
				least = 0 // loads take equally long
			case shm.PolicyPlanned:
				least = 10 // few newcomers are read sooner than the four that are there
			}
			if err != nil || !variable && stats.Ready != 4 || stats.Ready == 0 || stats.Corrupt+stats.Lost != 0 || stats.Evicted < least {
				t.Errorf("%+v, %v", stats, err)
			}
		})
	}
}

// slow is a source whose samples take known times.
type slow struct {
	*memory
	takes func(i int) time.Duration
}

func (s *slow) Read(ctx context.Context, i int, dst []byte) (int, error) {
	time.Sleep(s.takes(i))
	return s.memory.Read(ctx, i, dst)
}

// Ensure that the server stores what each load took, without its waits in queues, and that a cache with the
// policy cost then keeps the costliest samples.
func TestCostsOfLoads(t *testing.T) {
	const samples = 90
	m := newMemory(samples, 500)
	takes := func(i int) time.Duration { return time.Duration(4+4*(i%3)) * time.Millisecond } // 4, 8 and 12 ms
	with := func(p shm.Policy, slots int) (*peer, uint32, *cache.Cache) {
		o := options(t, m, server.CacheOptions{Size: sizeFor(t, m, slots), Policy: p, Parallel: 16,
			Source: source.Settings{"limits": map[string]any{"concurrency": 2}}})
		s, _ := start(t, server.WithSource(o, func(context.Context, source.Settings) (source.Source, error) {
			return &slow{m, takes}, nil
		}))
		c, number, seg := join(t, s)
		return c, number, view(t, seg)
	}
	costOf := func(c *cache.Cache, i int) time.Duration {
		return time.Duration(policy.Cost(shm.Meta(c.Segment().Meta(uint64(i)).Load()).Cost()).Nanoseconds())
	}
	for tries := 3; ; tries-- { // the timers of a busy machine are late: such a wait counts as one for the source
		c, number, own := with(shm.PolicyCost, samples/3)
		for range 4 {
			indices := shuffled(samples)
			wantSent(t, m, c.fetch(number, control.Send, indices...), indices)
		}
		wrong, kept := 0, 0
		for i := range samples {
			if got := costOf(own, i); got < takes(i)*7/10 || got > takes(i)*3/2 {
				wrong++
				t.Logf("sample %d takes %v and costs %v", i, takes(i), got)
			}
			if state, err := own.State(i); err == nil && state == cache.StateReady && i%3 == 2 {
				kept++
			}
		}
		if wrong <= samples/10 && kept >= samples/3*8/10 {
			break
		}
		if tries == 1 {
			t.Fatalf("%d of %d samples have a wrong cost, and %d of the %d slots have one of the costliest samples", wrong,
				samples, kept, samples/3)
		}
	}
	c, number, own := with(shm.PolicyLRU, samples/3) // it decides by no cost, and keeps those of its first loads
	c.fetch(number, control.Send, shuffled(samples)...)
	for i := range samples {
		if costOf(own, i) == 0 {
			t.Errorf("a cache with the policy lru has no cost of sample %d", i)
		}
	}
}

// Ensure that a PREFETCH fills free slots, evicts nothing and reads nothing in a full cache, and that
// a FETCH of the same sample still gets it.
func TestPrefetchEvictsNothing(t *testing.T) {
	const samples = 40
	for name, variable := range sizes {
		t.Run(name, func(t *testing.T) {
			m := newMemoryOf(samples, 1000, variable)
			s := evicting(t, m, shm.PolicyFIFO, 10, 2)
			p, number, seg := join(t, s)
			c, most := view(t, seg), int(seg.Slots)+2
			p.prefetch(number, upTo(samples)...)
			fatal.Until(t, "samples are read", func() bool { return m.total() >= 5 })
			idle := func() bool { return s.Waiters("pets")+s.Queued("pets") == 0 }
			fatal.Until(t, "the queue is empty", idle)
			p.prefetch(number, upTo(samples)...)
			fatal.Until(t, "the queue is empty", idle)
			stats, err := c.Stats()
			ready := int(stats.Ready)
			if variable {
				most = ready + 4 // 2 readers may find the same space, and a smaller sample may still fit after that
			}
			if err != nil || stats.Evicted != 0 || m.total() > most || !variable && ready != int(seg.Slots) ||
				variable && (ready < 5 || stats.ReadyBytes < seg.PayloadBytes*3/4) {
				t.Errorf("%+v, %v, %d reads", stats, err, m.total())
			}
			last := int64(samples - 1)
			for state, err := c.State(int(last)); state == cache.StateReady && err == nil; state, err = c.State(int(last)) {
				last--
			}
			p.wantFetched(number, last)
			if stats, err := c.Stats(); err != nil || stats.Evicted == 0 || !variable && stats.Evicted != 1 {
				t.Errorf("a fetch: %+v, %v", stats, err)
			}
		})
	}
}

// Ensure that a PREFETCH reads nothing in a full cache from which no sample goes, and that it fills slots
// again after a clear.
func TestPrefetchIntoAFullCache(t *testing.T) {
	const samples = 40
	for name, variable := range sizes {
		for _, policy := range []shm.Policy{shm.PolicyFirstCome, shm.PolicyFirstIndices} {
			if variable && policy == shm.PolicyFirstIndices {
				continue
			}
			t.Run(fmt.Sprintf("%s, %v", name, policy), func(t *testing.T) {
				m := newMemoryOf(samples, 1000, variable)
				s := evicting(t, m, policy, 10, 2)
				p, number, c := attachTo(t, s)
				p.wantFetched(number, upTo(samples)...)
				full, err := c.Stats()
				if err != nil || full.Ready == 0 || full.Ready >= samples || m.total() != samples {
					t.Fatalf("%+v, %v, %d reads", full, err, m.total())
				}
				idle := func() bool { return s.Waiters("pets")+s.Queued("pets") == 0 }
				p.prefetch(number, upTo(samples)...)
				fatal.Until(t, "the queue is empty", idle)
				if a := p.fetch(number, control.SlotsOnly, upTo(samples)...); len(a.failures) != samples-int(full.Ready) {
					t.Errorf("%d samples have no slot, %d have one", len(a.failures), full.Ready)
				}
				if n := m.total(); n > samples+2 && variable || n != samples && !variable {
					t.Errorf("%d reads of %d samples", n, samples)
				}
				fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
				p.prefetch(number, upTo(samples)...)
				fatal.Until(t, "slots are filled", func() bool {
					stats, err := c.Stats()
					return err == nil && idle() && (stats.Ready == full.Ready || variable && stats.Ready > 0)
				})
			})
		}
	}
}

// Ensure that a FETCH gets its samples from a full cache, also if it joins the read of a PREFETCH, for
// which the server reads nothing.
func TestFetchBesidePrefetches(t *testing.T) {
	const samples = 64
	for name, variable := range sizes {
		t.Run(name, func(t *testing.T) {
			m := newMemoryOf(samples, 1024, variable)
			s := evicting(t, m, shm.PolicyFIFO, 4, 4)
			end := time.Now().Add(200 * time.Millisecond)
			var all sync.WaitGroup
			for k := range 4 {
				p, number, _ := join(t, s)
				all.Go(func() {
					for time.Now().Before(end) && !t.Failed() {
						indices := shuffled(samples)
						if k%2 == 0 {
							p.prefetch(number, indices...)
						} else {
							p.wantFetched(number, indices...)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// Ensure that a cache of samples that differ in size, with a policy that evicts, has room for all of them
// if it has no size, is warm after a restart, and is replaced if the policy changes. first-indices is
// first-come there.
func TestPolicyOfVariableSamples(t *testing.T) {
	m := newMemoryOf(40, 30_000, true)
	o := options(t, m, server.CacheOptions{Policy: shm.PolicyCost})
	for n, c := range []struct {
		policy, want shm.Policy
		warm         bool
	}{{shm.PolicyCost, shm.PolicyCost, false}, {shm.PolicyCost, shm.PolicyCost, true},
		{shm.PolicyLRU, shm.PolicyLRU, false}, {shm.PolicyFirstIndices, shm.PolicyFirstCome, false},
		{shm.PolicyFirstCome, shm.PolicyFirstCome, true}} {
		o.Caches[0].Policy = c.policy
		s, stop := start(t, o)
		p, number, seg := join(t, s)
		before := m.total()
		wantSent(t, m, p.fetch(number, control.Send, upTo(40)...), upTo(40))
		stats, err := view(t, seg).Stats()
		if err != nil || seg.Policy != c.want || stats.Ready != 40 || stats.Evicted != 0 || (m.total() == before) != c.warm {
			t.Errorf("%d: policy %v, %d reads, %+v, %v", n, seg.Policy, m.total()-before, stats, err)
		}
		stop()
	}
}

// Ensure that another policy replaces a cache by an empty one, by a reload and a restart, and that a policy that does not exist changes nothing.
func TestAnotherPolicy(t *testing.T) {
	shelf := newShelf()
	shelf.put(1, 100, 1000)
	var log bytes.Buffer
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Caches[0].Size = 5 << 20
	s, stop := start(t, o)
	filled := func() (uuid [16]byte) {
		p, number, seg := join(t, s)
		p.wantFetched(number, upTo(50)...)
		return seg.Header.UUID
	}
	want := func(what string, policy shm.Policy, before [16]byte) {
		t.Helper()
		_, _, seg := join(t, s)
		stats, err := view(t, seg).Stats()
		if err != nil || seg.Policy != policy || (stats.Ready == 0) != (seg.Header.UUID != before) {
			t.Errorf("%s: policy %v, %d samples, %v", what, seg.Policy, stats.Ready, err)
		}
	}
	with := func(policy shm.Policy) server.Options {
		next := o
		next.Caches = append([]server.CacheOptions(nil), o.Caches...)
		next.Caches[0].Policy = policy
		return next
	}
	before := filled()
	wantRefused(t, s, with(shm.Policy(99)), shm.ErrInvalid)
	want("wrong policies", shm.PolicyFirstCome, before)
	reload(t, s, with(shm.PolicyCost))
	want("a reload", shm.PolicyCost, [16]byte{})
	before = filled()
	reload(t, s, with(shm.PolicyCost))
	want("the same again", shm.PolicyCost, before)
	resized := with(shm.PolicyLFU)
	resized.Caches[0].Size = 5 << 20
	reload(t, s, resized)
	want("another size too", shm.PolicyLFU, [16]byte{})
	filled()
	stop()
	o = with(shm.PolicyFIFO)
	s, _ = start(t, o)
	want("a restart", shm.PolicyFIFO, [16]byte{})
	expect.Says(t, log.String(), "its policy is lfu, the configuration says fifo")
}
