package advise

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// half are samples of which every second one takes nine times as long.
func half() *Data {
	d := &Data{Name: "half", Samples: 1000, SampleBytes: 1 << 20, Pace: Pace{Share: 1, Workers: 1}}
	for k := range d.Samples {
		d.Seconds = append(d.Seconds, []float64{0.001, 0.009}[k%2])
	}
	return d
}

func curve(t *testing.T, d *Data) *Curve {
	t.Helper()
	c := fatal.Value(New(d, 1))(t)
	return c
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9*max(1, math.Abs(b)) }

// First-come saves as much as it caches, and the ideal set is that of the costliest samples. The policy
// cost lies between.
func TestCurve(t *testing.T) {
	c := curve(t, half())
	if !near(c.Load, 5) {
		t.Error("loads take", c.Load)
	}
	for part, want := range map[float64][2]float64{0: {0, 0}, 0.25: {0.25, 0.45}, 0.5: {0.5, 0.9}, 0.75: {0.75, 0.95},
		1: {1, 1}, 1.5: {1, 1}} {
		first, ideal, cost := c.Saving(FirstCome, part), c.Saving(Ideal, part), c.Saving(Cost, part)
		if part <= 1 && !near(first, want[0]) || !near(ideal, want[1]) || cost > ideal || cost < 0.95*ideal {
			t.Errorf("%g of the samples: first-come %g, cost %g, ideal %g, want %v", part, first, cost, ideal, want)
		}
	}
	if c.Bytes(0.5) != 500<<20 || !near(c.Part(500<<20+7), 0.5) || c.Part(1<<40) != 1 {
		t.Error(c.Bytes(0.5), c.Part(500<<20+7), c.Part(1<<40))
	}
}

// An epoch takes as long as the slowest of what runs side by side. Without workers all runs one after
// the other.
func TestPace(t *testing.T) {
	limits := []Limit{{Name: "the training step", Seconds: 3}, {Name: "gathering", Seconds: 1}}
	most, little := 0.8, 0.0
	for _, c := range []struct {
		pace    Pace
		load    float64
		seconds float64
		limit   string
	}{
		{Pace{Workers: 2, Limits: limits}, 10, 5, "loading"},
		{Pace{Workers: 2, Limits: limits, Source: &most}, 10, 5, "the source"},
		{Pace{Workers: 2, Limits: limits, Source: &little}, 10, 5, "decoding"},
		{Pace{Workers: 2, Limits: limits, Source: &most}, 5, 3, "the training step"},
		{Pace{Workers: 2, Limits: limits}, 5, 3, "the training step"},
		{Pace{Workers: 2, Augment: 8, Limits: limits}, 2, 5, "augment="},
		{Pace{Workers: 2, Augment: 8, Limits: limits}, 0, 4, "augment="},
		{Pace{Limits: limits}, 10, 14, "loading"},
		{Pace{Limits: limits, Augment: 1}, 2, 7, "the training step"},
		{Pace{Workers: 1}, 0, 0, "loading"},
		{Pace{Workers: 8, CPUs: 2, Source: &little}, 8, 4, "decoding"}, // no faster than two workers
		{Pace{Workers: 8, CPUs: 2, Source: &most}, 8, 1, "the source"},
		{Pace{Workers: 80, CPUs: 2, Source: &most}, 8, 0.8, "decoding"},
		{Pace{Workers: 8, CPUs: 2, Source: &most, Augment: 4}, 4, 2.4, "augment="},
		{Pace{Workers: 8, CPUs: 2, Augment: 6}, 8, 3, "augment="}, // loads may all wait
	} {
		if seconds, limit := c.pace.Epoch(c.load); !near(seconds, c.seconds) || limit != c.limit {
			t.Errorf("%+v with %g s of loads: %g s, limit %s", c.pace, c.load, seconds, limit)
		}
	}
}

// More memory stops helping where something else is the limit.
func TestEnough(t *testing.T) {
	d := half()
	d.Pace.Limits = []Limit{{Name: "the training step", Seconds: 2.5}}
	d.Today.Part = 0.1
	c := curve(t, d)
	first, ideal := c.Enough(FirstCome), c.Enough(Ideal)
	if math.Abs(first-0.495) > 0.002 || math.Abs(ideal-0.275) > 0.002 { // a hundredth above the limit
		t.Error(first, ideal)
	}
	if next := c.GiB(); next.Bytes != 900<<20 || !near(next.Seconds[FirstCome], 2) || !near(next.Seconds[Ideal], 1.6) {
		t.Errorf("%+v", next)
	}
	d.Samples, d.SampleBytes = 1e6, 1<<20 // a GiB is a thousandth of it
	c = curve(t, d)
	if next := c.GiB(); next.Bytes != 1<<30 || !near(next.Seconds[FirstCome], 5000*1024/1e6) {
		t.Errorf("%+v", next)
	}
	d.Pace.Limits, d.Today.Part = nil, 1
	c = curve(t, d)
	if next := c.GiB(); c.Enough(FirstCome) != 1 || next.Bytes != 0 || next.Seconds[Cost] != 0 {
		t.Errorf("%g, %+v", c.Enough(FirstCome), next)
	}
}

// A recorded run has costs, sizes, workers, the step and what it had cached.
func TestRun(t *testing.T) {
	recorded, err := timeline.ReadFile("../timeline/testdata/run.json")
	fatal.If(t, err)
	d, err := Run("run.json", recorded, 0)
	fatal.If(t, err)
	if d.Samples != 240 || len(d.Seconds) != 240 || d.SampleBytes != 3*64*64 || d.Pace.Workers != 3 ||
		d.Pace.Share != 1 || d.Today.Part != 0.75 || d.Today.Seconds < 0.29 || d.Today.Seconds > 0.32 || len(d.Notes) != 1 {
		t.Errorf("%+v", d)
	}
	c := curve(t, d)
	if _, limit := c.Epoch(FirstCome, 0); limit != "loading" {
		t.Error(limit)
	}
	// The epoch that was recorded with a hit rate of 0.75 is predicted within 5 %.
	if seconds, limit := c.Epoch(FirstCome, d.Today.Part); limit != "the training step" ||
		math.Abs(seconds/d.Today.Seconds-1) > 0.05 {
		t.Error(seconds, limit)
	}
	if d, err = Run("run.json", recorded, 1000); err != nil || d.SampleBytes != 1000 {
		t.Error(d, err)
	}
}

// batchOf is a timeline with one epoch of a batch of 40 samples, of one rank of two.
func batchOf(kind timeline.Kind, indices ...int64) *timeline.Trace {
	loop := &timeline.Track{Number: 1, Spans: []timeline.Span{
		{Kind: timeline.Wait, Start: 0, End: 100, Samples: 40, Hits: 1, Misses: 39, Bytes: 40_000, Index: -1},
		{Kind: timeline.Step, Start: 100, End: 200, Index: -1}}}
	worker := &timeline.Track{Number: 10}
	for k, index := range indices {
		worker.Spans = append(worker.Spans, timeline.Span{Kind: kind, Start: int64(k), End: int64(k) + 10, Index: index})
	}
	return &timeline.Trace{Loaders: []*timeline.Loader{{WorldSize: 2, Tracks: []*timeline.Track{loop, worker}}}}
}

func first(n int64) (indices []int64) {
	for k := range n {
		indices = append(indices, k)
	}
	return indices
}

// A rank reads its part of the samples. Samples without a known cost are said.
func TestRunOfARank(t *testing.T) {
	d, err := Run("rank", batchOf(timeline.Load, first(30)...), 0)
	if err != nil || d.Samples != 80 || d.Pace.Share != 0.5 || d.SampleBytes != 1000 || len(d.Seconds) != 30 ||
		!strings.Contains(strings.Join(d.Notes, "\n"), "the costs of 30 of its 80 samples are known") {
		t.Fatalf("%+v, %v", d, err)
	}
	if c := curve(t, d); !near(c.Load, 40*10e-9) {
		t.Error(c.Load)
	}
	_, err = Run("rank", batchOf(timeline.Load, first(29)...), 0)
	if want := "the loads of only 29 of the 80 samples of rank were measured, and fewer than 30 say little"; !errors.Is(err,
		ErrUnknown) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// Workers that waited for a processor make an epoch long, and no prediction.
func TestRunOnABusyMachine(t *testing.T) {
	const said = "for workers that had no processor; the predictions leave that out"
	for end, want := range map[int64]bool{90: true, 45: false} {
		recorded := batchOf(timeline.Load, first(30)...)
		worker := recorded.Loaders[0].Tracks[1]
		worker.Spans = append(worker.Spans, timeline.Span{Kind: timeline.Delay, Start: 40, End: end, Index: 29})
		d, err := Run("busy", recorded, 0)
		if err != nil || strings.Contains(strings.Join(d.Notes, "\n"), said) != want {
			t.Errorf("a delay of %d ns: %+v, %v", end-40, d, err)
		}
	}
}

// What says nothing is an error that says the next step.
func TestUnknown(t *testing.T) {
	variable := batchOf(timeline.Load, first(30)...)
	variable.Loaders[0].Tracks[0].Spans[0].Bytes = -1
	for want, recorded := range map[string]*timeline.Trace{
		"has no epoch of a training loop":           {},
		"begins with an empty cache":                batchOf(timeline.Gather, 3),
		"stocached advise NAME":                     batchOf(timeline.Fetch, -1),
		"does not say how large a stored sample is": variable,
	} {
		if _, err := Run("run.json", recorded, 0); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "run.json") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, o := range map[string]shm.Options{
		"has measured no load yet": {Samples: 10, SampleBytes: 10, Policy: shm.PolicyCost},
		"has measured no load yet. Run an epoch whose loader stores into it, then ask again; or record a run": {
			Samples: 10, Variable: true, Limit: 8 << 20},
	} {
		seg := fatal.Value(shm.Create(o))(t)
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		if _, err := Cache("pets", seg, c); !errors.Is(err, ErrUnknown) ||
			!strings.Contains(err.Error(), "cache pets "+want) {
			t.Errorf("%v, want %q", err, want)
		}
		c.Close()
		seg.Close()
	}
}

// A cache of any policy has costs to advise from, if it was told some. The curve is that of the policies
// first-come and cost, and of a policy for other reads than epochs of one job it says so.
func TestCacheOfAnyPolicy(t *testing.T) {
	for policy := shm.PolicyFirstCome; policy <= shm.PolicyPlanned; policy++ {
		seg := fatal.Value(shm.Create(shm.Options{Samples: 100, Slots: 40, SampleBytes: 10, Policy: policy}))(t)
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		for i := range 100 {
			took := time.Duration(1+8*(i%2)) * time.Millisecond
			fatal.Value(c.SetLoaded(i, [][]byte{make([]byte, 10)}, 0, took))(t)
		}
		d, err := Cache("pets", seg, c)
		if err != nil {
			t.Fatalf("%v: %v", policy, err)
		}
		known := 100
		if !policy.Evicts() {
			known = 40 // a set into a full cache claims nothing
		}
		others := policy >= shm.PolicyClock && policy != shm.PolicyFIFO
		if said := strings.Contains(strings.Join(d.Notes, "\n"), "pets: all of this is about epochs that read each sample once"); len(
			d.Seconds) != known || d.Today.Policy != policy.String() || d.Today.Part != 0.4 || said != others {
			t.Errorf("%v: %d loads, %+v, %v", policy, len(d.Seconds), d.Today, d.Notes)
		}
		if load := curve(t, d).Load; math.Abs(load/0.5-1) > 0.3 { // the first loads count for less
			t.Errorf("%v: loads take %g s, and they took 0.5", policy, load)
		}
		c.Close()
		seg.Close()
	}
}
