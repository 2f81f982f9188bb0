package arena

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/policy"
)

const (
	count  = 3000
	epochs = 50
	mean   = 100_000
	most   = 0.15 // the part of an arena that may be lost
)

// lognormal returns lengths with a mean.
func lognormal(r *rand.Rand, n int, mean, sigma float64) []uint64 {
	lengths := make([]uint64, n)
	for k := range lengths {
		lengths[k] = uint64(mean * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2))
	}
	return lengths
}

func sum(lengths []uint64) (n uint64) {
	for _, l := range lengths {
		n += l
	}
	return n
}

// read reads every sample once, in a random order, and stores those that are no hits. The time of a
// load is in proportion to the length, with noise.
func read(a *Arena, r *rand.Rand, lengths []uint64) (hits int, saved, total float64) {
	for _, i := range r.Perm(len(lengths)) {
		cost := float64(lengths[i]) * (0.5 + float64(i*7919%1000)/1000)
		total += cost
		if a.samples[i].length == lengths[i] && a.Get(i) {
			hits++
			saved += cost
			continue
		}
		a.Set(i, lengths[i], uint64(cost*math.Exp(0.2*r.NormFloat64())))
	}
	return hits, saved, total
}

// dataset is what a test reads, through an arena for a fraction of it.
type dataset struct {
	name     string
	first    []uint64 // lengths of the samples
	second   []uint64 // lengths from the middle on
	fraction float64
	typical  uint64
}

func datasets(percent, typical uint64) []dataset {
	r := rand.New(rand.NewPCG(1, 2))
	same := make([]uint64, count)
	for k := range same {
		same[k] = mean
	}
	narrow, wide := lognormal(r, count, mean, 0.6), lognormal(r, count, mean, 1.2)
	longer, shorter := lognormal(r, count, 4*mean, 0.6), lognormal(r, count, mean/2, 0.6)
	all := []dataset{
		{name: "sigma 0.6", first: narrow, second: narrow},
		{name: "sigma 1.2", first: wide, second: wide},
		{name: "all alike", first: same, second: same},
		{name: "0.6 then 1.2", first: narrow, second: wide},
		{name: "1.2 then longer", first: wide, second: longer},
		{name: "1.2 then shorter", first: wide, second: shorter},
	}
	for k := range all {
		d := &all[k]
		d.fraction, d.typical = float64(percent)/100, typical
		d.name = fmt.Sprintf("%s, %d %%, typical %d", d.name, percent, typical)
	}
	return all
}

// At most 15 % of an arena are lost at the end of any epoch from the second on, and at most an eighth
// in the ends of slots.
func TestLoss(t *testing.T) {
	run := func(d dataset, kind policy.Kind) {
		t.Run(d.name+"/"+kind.String(), func(t *testing.T) {
			t.Parallel()
			epochs := epochs
			if testing.Short() || kind != policy.KindCost && os.Getenv("STOCACHED_TEST_EPOCHS") == "" {
				epochs = 10 // `make soak` runs all epochs with each policy
			}
			r := rand.New(rand.NewPCG(3, 4))
			payload := uint64(d.fraction * float64(sum(d.first)))
			a := New(kind, payload, count, d.typical, 5)
			worst, hits := Loss{}, 0
			var saved, total float64
			for epoch := range epochs {
				lengths := d.first
				if epoch >= epochs/2 {
					lengths = d.second
				}
				hits, saved, total = read(a, r, lengths)
				l := a.Loss()
				if l.Ends > 1.0/8 {
					t.Errorf("%.1f %% lost in ends of slots", 100*l.Ends)
				}
				if epoch == 0 || epoch == epochs/2 || sum(lengths) < payload {
					continue // not full yet, or all samples fit
				}
				if l.Sum() > worst.Sum() {
					worst = l
				}
			}
			l := a.Loss()
			slots, runs := a.Pieces()
			t.Logf("slots of %d, %.0f a sample in %.1f runs: lost %.1f %% (ends %.1f, free %.1f), at worst %.1f; "+
				"hits %.3f, saved %.3f; %d refused", a.Stride, slots, runs, 100*l.Sum(),
				100*l.Ends, 100*l.Free, 100*worst.Sum(), float64(hits)/count, saved/total, a.Refused)
			if worst.Sum() > most {
				t.Errorf("%.1f %% lost", 100*worst.Sum())
			}
			expect.NoError(t, a.Check())
		})
	}
	for _, d := range append(datasets(25, 0), datasets(75, mean)...) {
		for _, kind := range []policy.Kind{policy.KindCost, policy.KindRandom, policy.KindLRU} {
			run(d, kind)
		}
	}
	for _, d := range datasets(50, mean) {
		for _, kind := range []policy.Kind{policy.KindClock, policy.KindFIFO, policy.KindLFU} {
			run(d, kind)
		}
	}
}

// The size of a slot is a power of two that loses at most an eighth.
func TestStride(t *testing.T) {
	for _, c := range []struct{ payload, samples, typical, want uint64 }{
		{1 << 30, 1 << 20, 0, 128},
		{1 << 30, 1<<20 + 1, 0, 64},
		{1 << 30, 1 << 40, 0, 64},
		{1 << 30, 1, 0, 2 << 20},
		{1 << 30, 1 << 40, 100_000, 4096},
		{1 << 30, 1, 65_536, 4096},
		{1 << 30, 1, 65_535, 2048},
	} {
		expect.Equal(t, StrideFor(c.payload, c.samples, c.typical), c.want, "%+v", c)
	}
}
