package advise

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// off says how far a number lies from another, as a part of that. NaN is far.
func off(a, b float64) float64 {
	if d := math.Abs(a/b - 1); !math.IsNaN(d) {
		return d
	}
	return math.Inf(1)
}

// What is predicted is what epochs then do, within 5 %, from the fourth epoch on. Reads that are no epochs
// do something else, and it shows.
func TestEpochPredictedAndObserved(t *testing.T) {
	sizes := make([]uint64, 5000)
	for k, s := range simulate.Lognormal(len(sizes), 0.6, 6) {
		sizes[k] = uint64(1e6 * s)
	}
	t.Run("one size", func(t *testing.T) { predictAndObserve(t, len(sizes), nil) })
	t.Run("sizes", func(t *testing.T) { predictAndObserve(t, len(sizes), sizes) })
}

func evicted(t *testing.T, c *cache.Cache) float64 {
	t.Helper()
	s := fatal.Value(c.Stats())(t)
	return float64(s.Evicted)
}

func predictAndObserve(t *testing.T, samples int, sizes []uint64) {
	seconds := simulate.Lognormal(samples, 0.6, 5)
	c, play := costly(t, seconds, sizes, 0.3, 0)
	var track Track
	predicted, observed, why := track.Compare("pets", c.Segment(), c)
	if !errors.Is(why, ErrUnknown) || !strings.Contains(why.Error(), "pets has measured no load yet") ||
		!math.IsNaN(predicted.HitRate) || !math.IsNaN(observed.HitRate) {
		t.Error(predicted, observed, why)
	}
	compare := func() (predicted, observed Epoch) {
		t.Helper()
		predicted, observed, why := track.Compare("pets", c.Segment(), c)
		if why != nil || sizes == nil && math.Abs(predicted.HitRate-0.3) > 1e-3 {
			t.Fatal(predicted, why)
		}
		return predicted, observed
	}
	total := 0.0
	for _, s := range seconds {
		total += s
	}
	for epoch := range 6 {
		before, saved := evicted(t, c), play(epoch)
		predicted, observed := compare()
		if math.Abs(observed.Evicted-(evicted(t, c)-before)) > 0.5 || !math.IsNaN(predicted.Evicted) {
			t.Errorf("epoch %d: %g samples went, observed %+v", epoch, evicted(t, c)-before, observed)
		}
		t.Logf("epoch %d: predicted %+v, observed %+v", epoch, predicted, observed)
		if off(observed.Load, total-saved) > 1e-6 || off(observed.Saved, saved) > 0.05 && epoch > 0 {
			t.Errorf("epoch %d: it saved %g of %g s, observed %+v", epoch, saved, total, observed)
		}
		if epoch > 2 && (off(predicted.HitRate, observed.HitRate) > 0.05 || off(predicted.Saved, observed.Saved) > 0.05 ||
			off(predicted.Load, observed.Load) > 0.05) {
			t.Errorf("epoch %d: predicted %+v, observed %+v", epoch, predicted, observed)
		}
	}

	sample := make([]byte, sampleBytes)
	if sizes != nil {
		return
	}
	for n := range uint64(2 * samples) { // half of all reads are of samples that take longer than others
		i := int(policy.Random(1, n) % uint64(samples))
		for n%2 == 0 && seconds[i] < total/float64(samples) {
			i = (i + 1) % samples
		}
		if _, hit, err := c.Get(i, sample); err != nil {
			t.Fatal(err)
		} else if !hit {
			fatal.Value(c.SetLoaded(i, [][]byte{sample}, 0, time.Duration(seconds[i]*1e9)))(t)
		}
		track.Look(c.Segment())
	}
	predicted, observed = compare()
	t.Logf("weighted reads: predicted %+v, observed %+v", predicted, observed)
	if off(predicted.HitRate, observed.HitRate) < 0.1 || off(predicted.Saved, observed.Saved) < 0.1 {
		t.Errorf("weighted reads: predicted %+v, observed %+v", predicted, observed)
	}
	if n := len(track.looks); n > 2*looksAnEpoch {
		t.Errorf("%d looks are kept", n)
	}
}

// The observed epoch is the last one, however many there were before.
func TestLastEpoch(t *testing.T) {
	seg := fatal.Value(shm.Create(shm.Options{Samples: 100, SampleBytes: 8, Policy: shm.PolicyCost}))(t)
	defer seg.Close()
	c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
	defer c.Close()
	var track Track
	read := func(sample, times int) {
		for range times {
			if _, _, err := c.Get(sample, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			track.Look(seg)
		}
	}
	few := func(err error) bool { // ten loads tell no more
		return err != nil && strings.Contains(err.Error(), "the loads of only 10 of the 100 samples of c were measured")
	}
	want := func(hitRate, load float64) {
		t.Helper()
		if _, o, err := track.Compare("c", seg, c); !few(err) || math.Abs(o.HitRate-hitRate) > 1e-9 ||
			math.Abs(o.Load-load) > 1e-9 {
			t.Errorf("%+v, want a hit rate of %g, loads of %g s; %v", o, hitRate, load, err)
		}
	}
	track.Look(seg)
	for i := range 10 {
		fatal.Value(c.SetLoaded(i, [][]byte{make([]byte, 8)}, 0, 2*time.Second))(t)
	}
	read(50, 99)
	if _, o, err := track.Compare("c", seg, c); !few(err) || !math.IsNaN(o.HitRate) || !math.IsNaN(o.Load) {
		t.Errorf("after 99 reads: %+v, %v", o, err)
	}
	read(50, 1)
	want(0, 20)
	read(5, 30)
	want(0.3, 0)
	read(5, 70)
	want(1, 0)
	read(50, 1000)
	want(0, 0)
}

// A cache of few samples has an observed epoch after 100 reads: a hit rate of a handful is chance.
func TestEpochOfFewReads(t *testing.T) {
	c, play := costly(t, []float64{0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08}, nil, 0.5, 0)
	var track Track
	for epoch := range 30 {
		_, observed, _ := track.Compare("few", c.Segment(), c)
		reads := 8 * epoch
		if known := !math.IsNaN(observed.HitRate); known != (reads >= 100) || known != !math.IsNaN(observed.Saved) {
			t.Errorf("after %d reads: %+v", reads, observed)
		}
		if reads >= 100 && (observed.HitRate < 0.4 || observed.HitRate > 0.5 || observed.Load > 0.2) {
			t.Errorf("after %d reads of epochs that load 0.1 s: %+v", reads, observed)
		}
		play(epoch)
	}
}

// A cache of any policy has a predicted hit rate, which its epochs then have. Those whose samples go all the time are
// simulated, and so is today's epoch of advise. Of planned, the jobs would have to be known.
func TestHitRateOfAnyPolicy(t *testing.T) {
	const samples, slots = 4000, 1600
	for kind := policy.KindFirstCome; kind <= policy.KindPlanned; kind++ {
		seg, err := shm.Create(shm.Options{Samples: samples, Slots: slots, SampleBytes: 8, Policy: shm.Policy(kind - 1)})
		fatal.If(t, err)
		seg.Header.UUID = [16]byte{7}
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		var track Track
		track.Look(seg)
		indices, sample := make([]int, samples), make([]byte, 8)
		for epoch := range uint64(5) {
			e := fatal.Value(order.Order{Samples: samples, Kind: order.Shuffled, Seed: 3}.Epoch(epoch))(t)
			e.Fill(indices, 0, 1)
			for _, i := range indices {
				if _, hit, err := c.Get(i, sample); err != nil {
					t.Fatal(err)
				} else if !hit {
					fatal.Value(c.SetLoaded(i, [][]byte{sample}, 0, time.Millisecond))(t)
				}
			}
			track.Look(seg)
		}
		predicted, observed, why := track.Compare("c", seg, c)
		switch unknown := math.IsNaN(predicted.Load) && math.IsNaN(observed.Load) && math.IsNaN(observed.Saved); {
		case kind == policy.KindPlanned:
			if !math.IsNaN(predicted.HitRate) || why == nil || !strings.Contains(why.Error(), "what jobs have announced") {
				t.Errorf("%v: %+v, %v", kind, predicted, why)
			}
		case why != nil, off(predicted.HitRate, observed.HitRate) > 0.08, unknown == kind.NeedsCosts(), math.IsNaN(observed.Evicted):
			t.Errorf("%v: predicted %+v, observed %+v, %v", kind, predicted, observed, why)
		}
		d := fatal.Value(Cache("c", seg, c))(t)
		simulated, whole := changes(kind), curve(t, d).Load
		if d.Today.Simulated != simulated || simulated != strings.Contains(strings.Join(d.Notes, ""), "stocached simulate --policy "+kind.String()) ||
			kind != policy.KindPlanned && off(1-d.Today.Load/whole, observed.HitRate) > 0.08 {
			t.Errorf("%v: loads of %g of %g s with a hit rate of %g; %v", kind, d.Today.Load, whole, observed.HitRate, d.Notes)
		}
		c.Close()
		seg.Close()
	}
}
