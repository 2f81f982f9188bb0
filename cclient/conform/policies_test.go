//go:build cgo

package conform

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Each language makes the simulator's decisions: the same hits, costs, reference bytes and shared
// words after each read. cache/policies_test.go compares slots and victims too.
func TestDecisionsAreTheSimulators(t *testing.T) {
	const samples, slots, bytes, reads = 300, 60, 64, 6000
	for language := range languages {
		for kind := policy.KindFirstCome; kind <= policy.KindLFU; kind++ {
			t.Run(languages[language].name+"/"+kind.String(), func(t *testing.T) {
				o := shm.Options{Name: "policy", Dir: directory(t), Samples: samples, Slots: slots, SampleBytes: bytes,
					Assign: shm.Assign(kind - 1)}
				seg, err := shm.Create(o)
				if err != nil {
					t.Fatal(err)
				}
				defer seg.Close()
				c := open(t, language, filepath.Join(o.Dir, o.Name), false)
				seed := binary.LittleEndian.Uint64(seg.Header.UUID[:])
				replay := simulate.NewReplay(kind, samples, slots, seed)
				rng := rand.New(rand.NewPCG(seed, 1))
				zipf := rand.NewZipf(rng, 1.2, 20, samples-1)
				data := make([]byte, bytes)
				for n := range reads {
					i := int(zipf.Uint64())
					took := uint64(float64(1+i%17) * 1e6 * (0.7 + 0.6*rng.Float64()))
					if n%200 == 0 {
						took *= 20 // a stall
					}
					code, _ := c.get(i, make([]byte, bytes))
					if code < 0 {
						t.Fatalf("read %d of sample %d: %d", n, i, code)
					}
					if code == 0 {
						if code := c.setLoaded(i, data, took); code < 0 {
							t.Fatalf("set %d of sample %d: %d", n, i, code)
						}
					}
					want := replay.Read(i, took)
					slot := -1
					if w := shm.Word(seg.Word(uint64(i)).Load()); w.State() == shm.Ready {
						slot = int(seg.WordLayout().Place(w)) - 1
					}
					hand, spread := replay.Shared()
					if code == 1 != want.Hit || slot != want.Slot || seg.Hand().Load() != hand ||
						seg.Spread().Load() != uint64(spread) ||
						policy.Cost(shm.Meta(seg.Meta(uint64(i)).Load()).Cost()) != replay.Cost(i) ||
						kind.NeedsHits() && seg.Reference(uint64(slot)) != replay.Reference(slot) {
						t.Fatalf("read %d of sample %d: get %d, slot %d, hand %d, spread %#x; the simulator %+v, %d, %#x", n, i,
							code, slot, seg.Hand().Load(), seg.Spread().Load(), want, hand, spread)
					}
				}
			})
		}
	}
}
