// Package decisions compares the decisions of a real cache with those of the simulator. Tests of each
// language use it.
package decisions

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/internal/verify/arena"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

const (
	samples = 300
	slots   = 60
	bytes   = 64
	reads   = 6000
)

// Client is a client of a cache, in any language.
type Client interface {
	// Get copies a sample, and says whether it was a hit.
	Get(sample int, dst []byte) bool
	// SetLoaded sets a sample, READY or not, whose load took so long, and says whether it was stored.
	SetLoaded(sample int, data []byte, took time.Duration) bool
}

// Compare reads samples of a fresh cache for each policy. After each read the cache must have the
// simulator's hit, slot, victim, cost, reference byte and shared words. open makes a segment, and a
// client of it that fails the test on errors.
func Compare(t *testing.T, open func(t *testing.T, o shm.Options) (*shm.Segment, Client)) {
	for kind := policy.KindFirstCome; kind <= policy.KindPlanned; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			seg, c := open(t, shm.Options{Samples: samples, Slots: slots, SampleBytes: bytes, Policy: shm.Policy(kind - 1)})
			compare(t, kind, seg, c, nil)
		})
	}
}

// Plan is when the samples of ComparePlanned are read next. It changes as they are read.
type Plan struct{ read uint64 }

// Next is what cache.Options has.
func (p *Plan) Next(sample, soon uint64) uint64 {
	n := policy.Random(sample, p.read/100) % 500
	switch {
	case n == 499:
		return policy.Unread
	case n != 0 && n < soon:
		return 1
	}
	return n // 0: unknown
}

// ComparePlanned is Compare for the policy planned and a client that knows a plan.
func ComparePlanned(t *testing.T, open func(t *testing.T, o shm.Options, p *Plan) (*shm.Segment, Client)) {
	p := &Plan{}
	seg, c := open(t, shm.Options{Samples: samples, Slots: slots, SampleBytes: bytes, Policy: shm.PolicyPlanned}, p)
	compare(t, policy.KindPlanned, seg, c, p)
}

// CompareChains reads and overwrites samples of different sizes, for each policy that evicts. After each set
// the arena must have the slots, victims and hand of the simulation in package arena.
func CompareChains(t *testing.T, open func(t *testing.T, o shm.Options) (*shm.Segment, Client)) {
	for kind := policy.KindCost; kind <= policy.KindLFU; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			const samples, slots, stride = 200, 1088, 64
			g := fatal.Value(shm.NewGeometry(shm.FlagVariable, shm.Policy(kind-1), samples, slots, stride, 8, 0))(t)
			seg, c := open(t, shm.Options{Samples: samples, Variable: true, Policy: shm.Policy(kind - 1), SlotBytes: stride,
				ClientRecords: 8, Limit: g.SegmentBytes})
			compareChains(t, kind, seg, c)
		})
	}
}

func compareChains(t *testing.T, kind policy.Kind, seg *shm.Segment, c Client) {
	samples := int(seg.Samples)
	a := arena.WithSlots(kind, seg.Slots, seg.SlotStride, seg.Samples, binary.LittleEndian.Uint64(seg.Header.UUID[:]))
	r := rand.New(rand.NewPCG(7, uint64(kind)))
	dst, data := make([]byte, seg.PayloadBytes), make([]byte, 1<<20)
	hits, loads := 0, time.Duration(0)
	for n := range 4000 {
		i := int(float64(samples) * math.Pow(r.Float64(), 2))
		if overwrite := r.IntN(20) == 0; !overwrite {
			hit := c.Get(i, dst)
			if simulated := a.Get(i); hit != simulated {
				t.Fatalf("read %d of sample %d: hit %v, simulated %v", n, i, hit, simulated)
			}
			if hit {
				hits++
				continue
			}
		}
		size := int(500 * math.Exp(1.2*r.NormFloat64()))
		took := time.Duration(1+r.IntN(1e6)) * time.Microsecond
		stored := c.SetLoaded(i, data[:size], took)
		if uint64(size) <= seg.PayloadBytes { // a larger one is refused without a claim
			loads += took
		}
		if simulated := a.Set(i, uint64(size), uint64(took)); stored != simulated {
			t.Fatalf("set %d of sample %d: stored %v, simulated %v", n, i, stored, simulated)
		}
		head, ok := a.Ready(i)
		w := word(seg, i)
		if ok != (w.State() == shm.Ready) || ok && seg.WordLayout().Place(w) != head+1 || seg.Hand().Load() != a.Hand() {
			t.Fatalf("set %d of sample %d: word %#x, hand %d; simulated slot %d (%v), hand %d", n, i, uint64(w),
				seg.Hand().Load(), head, ok, a.Hand())
		}
	}
	ready := uint64(0)
	for i := range samples {
		if word(seg, i).State() == shm.Ready {
			ready += seg.Length(shm.Meta(seg.Meta(uint64(i)).Load()))
		}
	}
	lost := 1 - float64(ready)/float64(seg.PayloadBytes)
	if n := sum(seg, shm.Evicted); hits == 0 || n == 0 || n != a.Evicted || math.Abs(lost-a.Loss().Sum()) > 1e-9 {
		t.Errorf("%d hits, %d evicted, %f lost; simulated %d evicted, %f lost", hits, n, lost, a.Evicted, a.Loss().Sum())
	}
	checkLoads(t, kind, seg, loads)
}

func compare(t *testing.T, kind policy.Kind, seg *shm.Segment, c Client, plan *Plan) {
	seed := binary.LittleEndian.Uint64(seg.Header.UUID[:])
	want := simulate.NewCache(kind, samples, slots, seed)
	if plan != nil {
		want.Next = func(sample uint32) uint64 { return plan.Next(uint64(sample), 0) }
	}
	held := [slots]int{} // the sample of each slot, + 1
	rng := rand.New(rand.NewPCG(seed, 1))
	zipf := rand.NewZipf(rng, 1.2, 20, samples-1)
	dst := make([]byte, bytes)
	hits, loads := 0, time.Duration(0)
	for n := range reads {
		i := int(zipf.Uint64())
		if plan != nil {
			plan.read++
		}
		took := time.Duration(float64(1+i%17) * 1e6 * (0.7 + 0.6*rng.Float64()))
		if n%200 == 0 {
			took *= 20 // a stall
		}
		hit := c.Get(i, dst)
		if !hit {
			c.SetLoaded(i, content(i), took)
			loads += took
		} else if hits++; string(dst) != string(content(i)) {
			t.Fatalf("read %d of sample %d: other bytes", n, i)
		}
		wantHit, slot := want.Read(uint32(i), uint64(took)), -1
		if w := word(seg, i); w.State() == shm.Ready {
			slot = int(seg.WordLayout().Place(w)) - 1
		}
		if hit != wantHit || slot != want.Slot(i) {
			t.Fatalf("read %d of sample %d: hit %v in slot %d; the simulator %v in %d", n, i, hit, slot, wantHit, want.Slot(i))
		}
		if slot >= 0 {
			if victim := held[slot] - 1; victim >= 0 && victim != i && word(seg, victim).State() != shm.Empty {
				t.Fatalf("read %d of sample %d: sample %d should have gone", n, i, victim)
			}
			held[slot] = i + 1
		}
		if kind.NeedsHits() && seg.Reference(uint64(slot)) != want.Reference(slot) {
			t.Fatalf("read %d of sample %d: reference byte %d, the simulator %d", n, i, seg.Reference(uint64(slot)),
				want.Reference(slot))
		}
		if cost := policy.Cost(shm.Meta(seg.Meta(uint64(i)).Load()).Cost()); kind.NeedsCosts() && cost != want.Costs[i] {
			t.Fatalf("read %d of sample %d: cost %d, the simulator %d", n, i, cost, want.Costs[i])
		}
		if seg.Hand().Load() != want.Hand || kind.NeedsCosts() && seg.Spread().Load() != uint64(want.Spread) {
			t.Fatalf("read %d: hand %d and spread %#x, the simulator %d and %#x", n, seg.Hand().Load(),
				seg.Spread().Load(), want.Hand, want.Spread)
		}
	}
	ready := 0
	for i := range samples {
		if word(seg, i).State() == shm.Ready {
			ready++
		}
	}
	if n := sum(seg, shm.Evicted); ready != slots || hits == 0 || (kind.Evicts() && kind.NeedsPlans() == (plan != nil)) != (n > 0) {
		t.Errorf("%d samples are READY, %d hits, %d evicted", ready, hits, n)
	}
	checkLoads(t, kind, seg, loads)
}

// checkLoads says whether the cache has counted how long loads took: all of them, if no set is refused without a claim.
func checkLoads(t *testing.T, kind policy.Kind, seg *shm.Segment, loads time.Duration) {
	t.Helper()
	if told := sum(seg, shm.LoadNS); kind.Evicts() && told != uint64(loads) || !kind.Evicts() && told > uint64(loads) {
		t.Errorf("loads took %d ns, and the cache counted %d", loads, told)
	}
}

// sum is that of a counter of all clients.
func sum(seg *shm.Segment, counter shm.Counter) (n uint64) {
	for record := range seg.RecordsUsed() {
		n += seg.Count(record, counter)
	}
	return n
}

func word(seg *shm.Segment, sample int) shm.Word { return shm.Word(seg.Word(uint64(sample)).Load()) }

// content is the bytes of a sample, which no other sample has.
func content(sample int) []byte {
	data := make([]byte, bytes)
	for k := 0; k < bytes; k += 8 {
		binary.LittleEndian.PutUint64(data[k:], policy.Random(uint64(sample), uint64(k)))
	}
	return data
}
