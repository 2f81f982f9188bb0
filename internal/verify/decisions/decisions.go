// Package decisions compares the decisions of a real cache with those of the simulator. Tests of each
// language use it.
package decisions

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/simulate"
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
	// SetLoaded sets a sample whose load took so long.
	SetLoaded(sample int, data []byte, took time.Duration)
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

func compare(t *testing.T, kind policy.Kind, seg *shm.Segment, c Client, plan *Plan) {
	seed := binary.LittleEndian.Uint64(seg.Header.UUID[:])
	replay := simulate.NewReplay(kind, samples, slots, seed)
	if plan != nil {
		replay.Plan(func(sample int) uint64 { return plan.Next(uint64(sample), 0) })
	}
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
		want := replay.Read(i, uint64(took))
		slot := -1
		if w := word(seg, i); w.State() == shm.Ready {
			slot = int(seg.WordLayout().Place(w)) - 1
		}
		if hit != want.Hit || slot != want.Slot {
			t.Fatalf("read %d of sample %d: hit %v in slot %d; the simulator %+v", n, i, hit, slot, want)
		}
		if want.Victim >= 0 && word(seg, want.Victim).State() != shm.Empty {
			t.Fatalf("read %d of sample %d: sample %d should have gone", n, i, want.Victim)
		}
		if kind.NeedsHits() && seg.Reference(uint64(slot)) != replay.Reference(slot) {
			t.Fatalf("read %d of sample %d: reference byte %d, the simulator %d", n, i, seg.Reference(uint64(slot)),
				replay.Reference(slot))
		}
		if cost := policy.Cost(shm.Meta(seg.Meta(uint64(i)).Load()).Cost()); cost != replay.Cost(i) {
			t.Fatalf("read %d of sample %d: cost %d, the simulator %d", n, i, cost, replay.Cost(i))
		}
		hand, spread := replay.Shared()
		if seg.Hand().Load() != hand || seg.Spread().Load() != uint64(spread) {
			t.Fatalf("read %d: hand %d and spread %#x, the simulator %d and %#x", n, seg.Hand().Load(),
				seg.Spread().Load(), hand, spread)
		}
	}
	ready, evicted, told := 0, uint64(0), uint64(0)
	for i := range samples {
		if word(seg, i).State() == shm.Ready {
			ready++
		}
	}
	for record := range uint32(seg.ClientsHigh().Load()) {
		for stripe := range shm.CounterStripes {
			evicted += seg.Counter(record, stripe, shm.Evicted).Load()
			told += seg.Counter(record, stripe, shm.LoadNS).Load()
		}
	}
	if ready != slots || hits == 0 || (kind.Evicts() && kind.NeedsPlans() == (plan != nil)) != (evicted > 0) {
		t.Errorf("%d samples are READY, %d hits, %d evicted", ready, hits, evicted)
	}
	if kind.NeedsCosts() && told != uint64(loads) || !kind.NeedsCosts() && told != 0 {
		t.Errorf("loads took %d ns, and the cache counted %d", loads, told)
	}
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
