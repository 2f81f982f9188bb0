package cache_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// A cache in one process makes exactly the simulator's decisions: the same hits, slots and victims,
// and the same costs, reference bytes and shared words.
func TestDecisionsAreTheSimulators(t *testing.T) {
	const samples, slots, bytes, reads = 300, 60, 64, 6000
	for kind := policy.KindFirstCome; kind <= policy.KindLFU; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			seg := heap(t, shm.Options{Samples: samples, Slots: slots, SampleBytes: bytes,
				Assign: shm.Assign(kind - 1)})
			c := attach(t, seg)
			seed := binary.LittleEndian.Uint64(seg.Header.UUID[:])
			replay := simulate.NewReplay(kind, samples, slots, seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			zipf := rand.NewZipf(rng, 1.2, 20, samples-1)
			dst := make([]byte, bytes)
			for n := range reads {
				i := int(zipf.Uint64())
				took := time.Duration(float64(1+i%17) * 1e6 * (0.7 + 0.6*rng.Float64()))
				if n%200 == 0 {
					took *= 20 // a stall
				}
				_, hit, err := c.Get(i, dst)
				if err == nil && !hit {
					_, err = c.SetLoaded(i, payload(i, 1, bytes), 0, took)
				}
				if err != nil || hit && string(dst) != string(payload(i, 1, bytes)) {
					t.Fatalf("read %d of sample %d: %v, or other bytes", n, i, err)
				}
				want := replay.Read(i, uint64(took))
				slot := -1
				if w := shm.Word(seg.Word(uint64(i)).Load()); w.State() == shm.Ready {
					slot = int(seg.WordLayout().Place(w)) - 1
				}
				if hit != want.Hit || slot != want.Slot {
					t.Fatalf("read %d of sample %d: hit %v in slot %d; the simulator %+v", n, i, hit, slot, want)
				}
				if want.Victim >= 0 && shm.Word(seg.Word(uint64(want.Victim)).Load()).State() != shm.Empty {
					t.Fatalf("read %d of sample %d: sample %d should have gone", n, i, want.Victim)
				}
				if kind.NeedsHits() && seg.Reference(uint64(slot)) != replay.Reference(slot) {
					t.Fatalf("read %d of sample %d: reference byte %d, the simulator %d", n, i,
						seg.Reference(uint64(slot)), replay.Reference(slot))
				}
				cost := shm.Meta(seg.Meta(uint64(i)).Load()).Cost()
				if policy.Cost(cost) != replay.Cost(i) {
					t.Fatalf("read %d of sample %d: cost %d, the simulator %d", n, i, cost, replay.Cost(i))
				}
				hand, spread := replay.Shared()
				if seg.Hand().Load() != hand || seg.Spread().Load() != uint64(spread) {
					t.Fatalf("read %d: hand %d and spread %#x, the simulator %d and %#x", n, seg.Hand().Load(),
						seg.Spread().Load(), hand, spread)
				}
			}
			s := stats(t, c)
			if s.Ready != slots || s.Hits == 0 || kind.Evicts() != (s.Evicted > 0) {
				t.Errorf("%+v", s)
			}
			checkSound(t, seg)
		})
	}
}

// All policies evict soundly while several clients set and get.
func TestPoliciesTogether(t *testing.T) {
	for kind := policy.KindCost; kind <= policy.KindLFU; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			o := evicting
			o.Samples, o.Slots, o.Assign = 100, 8, shm.Assign(kind-1)
			evictTogether(t, heap(t, o))
		})
	}
}

// Reads that count no hit leave nothing for the policy.
func TestUncountedReadsAreNoHits(t *testing.T) {
	o := evicting
	o.Assign = shm.AssignClock
	seg := mapped(t, o)
	c := attach(t, seg)
	dst := make([]byte, evictBytes)
	set(t, c, 0, payload(0, 1, evictBytes), 0, cache.Stored)
	for range c.Ready() {
	}
	for range 3 {
		if _, hit, err := c.Copy(0, dst); !hit || err != nil {
			t.Fatal(hit, err)
		}
	}
	if b := seg.Reference(0); b != 0 {
		t.Errorf("reference byte %d after reads that are not counted", b)
	}
	if _, hit, err := c.Get(0, dst); !hit || err != nil {
		t.Fatal(hit, err)
	}
	if b := seg.Reference(0); b != 1 {
		t.Errorf("reference byte %d after a hit", b)
	}
}
