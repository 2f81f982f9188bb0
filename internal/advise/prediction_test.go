package advise

import (
	"math"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

const sampleBytes = 64

// costly returns a cache with the policy cost for a part of the samples, and a function that plays an epoch
// with it: it returns the seconds of the loads that hits saved. sizes: nil: all have sampleBytes.
func costly(t *testing.T, seconds []float64, sizes []uint64, part, noise float64) (*cache.Cache, func(epoch int) float64) {
	t.Helper()
	o := shm.Options{Samples: uint64(len(seconds)), Slots: uint64(part * float64(len(seconds))), SampleBytes: sampleBytes,
		Policy: shm.PolicyCost}
	if sizes != nil {
		limit, _, err := shm.ArenaLimit(shm.PolicyFirstCome, 0, sizes)
		fatal.If(t, err)
		room := float64(0)
		for _, n := range sizes {
			room += float64(n) * part
		}
		o = shm.Options{Samples: o.Samples, Limit: limit, Variable: true, Policy: o.Policy, SlotBytes: 64}
		g, err := shm.NewGeometry(shm.FlagVariable, o.Policy, o.Samples, uint64(room/64), 64, shm.DefaultClientRecords, 0)
		fatal.If(t, err)
		o.Limit = g.SegmentBytes
	}
	seg := fatal.Value(shm.Create(o))(t)
	t.Cleanup(func() { seg.Close() })
	seg.Header.UUID = [16]byte{7} // the seed of the policy, so that each run of the test is the same
	c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
	t.Cleanup(func() { c.Close() })
	sample, indices := make([]byte, 1<<20), make([]int, len(seconds))
	return c, func(epoch int) (saved float64) {
		e := fatal.Value(order.Order{Samples: uint64(len(seconds)), Kind: order.Shuffled, Seed: 99}.Epoch(uint64(epoch)))(t)
		e.Fill(indices, 0, 1)
		for _, i := range indices {
			_, hit, err := c.Get(i, sample)
			if hit {
				saved += seconds[i]
			} else if err == nil {
				took := seconds[i]
				if noise > 0 {
					took *= noisy(noise, uint64(i), uint64(epoch))
				}
				n := uint64(sampleBytes)
				if sizes != nil {
					n = sizes[i]
				}
				_, err = c.SetLoaded(i, [][]byte{sample[:n]}, 0, time.Duration(took*1e9))
			}
			fatal.If(t, err)
		}
		return saved
	}
}

// noisy is a factor with this standard deviation of its logarithm; 1 load in 200 stalls.
func noisy(deviation float64, sample, epoch uint64) float64 {
	r := policy.Random(epoch+1, sample)
	unit := func(k uint64) float64 { return (float64(policy.Random(r, k)>>11) + 0.5) / (1 << 53) }
	factor := math.Exp(deviation * math.Sqrt(-2*math.Log(unit(0))) * math.Cos(2*math.Pi*unit(1)))
	if policy.Random(r, 2)%200 == 0 {
		factor *= 20
	}
	return factor
}

// What is predicted from true costs, as a recorded run has them, and from the costs that a cache has
// measured, is what caches of this and of other sizes then save, within 2 %. With measured costs 5 % are
// allowed in small caches, because the policy cuts measurements off at the costliest hundredth, and with
// noise, because the policy knows it from its last hundred loads. An arena loses up to 3 % of its space.
func TestPredictionHolds(t *testing.T) {
	const samples = 5_000
	for _, set := range []struct {
		sigma, noise, sizes float64 // standard deviation of the logarithms of sizes; 0: alike
		together            bool    // a load takes as long as the sample is large, except for sigma
	}{{0.6, 0, 0, false}, {0.6, 0.3, 0, false}, {1.2, 0.1, 0, false}, {0, 0, 0, false}, {0.6, 0, 0.8, false},
		{0.3, 0, 0.8, true}} {
		seconds := simulate.Lognormal(samples, set.sigma, 5)
		var sizes []uint64
		if set.sizes > 0 {
			for k, s := range simulate.Lognormal(samples, set.sizes, 6) {
				sizes = append(sizes, uint64(s*4e5))
				if set.together {
					seconds[k] *= s * 100
				}
			}
		}
		first, play := costly(t, seconds, sizes, 0.25, set.noise)
		for epoch := range 3 {
			play(epoch)
		}
		measured, err := Cache("first", first.Segment(), first)
		fatal.If(t, err)
		exact := &Data{Name: "exact", Samples: samples, SampleBytes: sampleBytes, Seconds: seconds,
			Noise: set.noise, Stalls: set.noise > 0, Sizes: sizes,
			Pace: Pace{Share: 1, Workers: 1}}
		curves := map[*Data]*Curve{}
		for _, d := range []*Data{measured, exact} {
			if curves[d], err = New(d, 1); err != nil {
				t.Fatal(err)
			}
		}
		for _, part := range []float64{0.1, 0.37, 0.8} {
			_, play := costly(t, seconds, sizes, part, set.noise)
			saved := 0.0
			for epoch := range simulatedEpochs {
				saved = play(epoch)
			}
			for d, c := range curves {
				predicted, most := c.Load*c.Saving(Cost, part), 0.02
				if d == measured && (part < 0.2 || set.noise > 0) || sizes != nil {
					most = 0.05
				}
				t.Logf("%+v, %s: %.0f %% of the samples save %.3f s, predicted %.3f (%+.1f %%)", set, d.Name, part*100, saved,
					predicted, 100*(predicted/saved-1))
				if !(math.Abs(predicted/saved-1) <= most) {
					t.Errorf("%+v, %s: %.0f %% of the samples save %.3f s, predicted %.3f", set, d.Name, part*100, saved,
						predicted)
				}
			}
		}
		// Today is what the cache of the measurements saves.
		c := curves[measured]
		if saved := play(3); !(math.Abs((c.Load-c.Today.Load)/saved-1) <= 0.05) {
			t.Errorf("%+v: %.3f s are saved today, measured %.3f", set, saved, c.Load-c.Today.Load)
		}
		if most := max(0.02*set.sizes, 1e-3); math.Abs(c.Today.Part-0.25) > most || math.Abs(c.Today.Room-0.25) > most || c.Today.Policy != "cost" {
			t.Errorf("%+v", c.Today)
		}
	}
}

// Loads of a run that were recorded several times say how noisy they are, so noise is not taken for
// costs. With one load each, the advice says that it cannot know.
func TestNoiseOfARun(t *testing.T) {
	const samples, deviation = 2000, 0.3
	for _, sigma := range []float64{0, 0.6} {
		seconds := simulate.Lognormal(samples, sigma, 5)
		exact := curve(t, &Data{Name: "exact", Samples: samples, SampleBytes: 1, Seconds: seconds, Noise: deviation,
			Pace: Pace{Share: 1, Workers: 1}})
		for _, epochs := range []int{1, 2, 4} {
			loads, total := map[int64][]float64{}, 0.0
			for sample := range samples {
				for epoch := range epochs {
					r := policy.Random(uint64(epoch), uint64(sample))
					loads[int64(sample)] = append(loads[int64(sample)], seconds[sample]*math.Exp(deviation*simulate.Normal(r)))
				}
			}
			for _, of := range loads {
				for _, s := range of {
					total += s / float64(epochs)
				}
			}
			d := &Data{Name: "run", Samples: samples, SampleBytes: 1, Pace: Pace{Share: 1, Workers: 1}}
			d.loads(loads)
			c := curve(t, d)
			if !near(c.Load, total) {
				t.Errorf("loads take %g s, recorded %g", c.Load, total)
			}
			if epochs == 1 {
				if len(d.Notes) != 1 || d.Noise != usualNoise || c.Saving(Cost, 0.5) < exact.Saving(Cost, 0.5)*1.01 {
					t.Errorf("sigma %g, one epoch: noise %g, saving %g, notes %q", sigma, d.Noise, c.Saving(Cost, 0.5), d.Notes)
				}
				continue
			}
			got, want := c.Saving(Cost, 0.5), exact.Saving(Cost, 0.5)
			if len(d.Notes) != 0 || math.Abs(d.Noise-deviation) > 0.02 || math.Abs(got/want-1) > 0.02 {
				t.Errorf("sigma %g, %d epochs: noise %g, saving %g, want %g; notes %q", sigma, epochs, d.Noise, got, want, d.Notes)
			}
		}
	}
}
