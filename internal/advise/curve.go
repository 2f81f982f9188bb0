package advise

import (
	"cmp"
	"math"
	"slices"

	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/policy"
)

// What is simulated for the policy cost. Savings depend on the cached part and on the distribution of
// costs, and hardly on the number of samples.
const (
	Steps           = 20     // the curve has Steps + 1 points
	simulated       = 10_000 // samples, at most
	simulatedEpochs = 5      // the last one counts
)

// Curve is the time of an epoch against the part of the samples that is cached, or of their bytes if they
// differ in size. Policies: first-come, a straight line; cost, as the simulator predicts; ideal, the samples
// that fit and cost most for their bytes.
type Curve struct {
	*Data
	Load float64 // seconds to load what an epoch reads, without a cache
	// At equal steps of the cached part: what the ideal set saves of the loads, and what part of that the
	// policy cost saves, which changes little from step to step.
	ideal, reached []float64
	hits           []float64 // hits of an epoch with the policy cost, at each step
	sorted         []load    // the known ones, the costliest for their bytes first
}

// Policy is a policy of a curve.
type Policy int

const (
	FirstCome Policy = iota
	Cost
	Ideal
	policies
)

func (p Policy) String() string { return [...]string{"first-come", "cost", "ideal"}[p] }

// New computes the curve. The seed is that of the simulation.
func New(d *Data, seed uint64) (*Curve, error) {
	c, err := newCurve(d, seed, 0, Steps)
	if err != nil || d.Today.Seconds > 0 {
		return c, err
	}
	return c, c.today(seed)
}

// newCurve computes what the policy cost saves only from one step to another.
func newCurve(d *Data, seed uint64, first, last int) (*Curve, error) {
	c := &Curve{Data: d}
	known := make([]load, len(d.Seconds))
	total, bytes := 0.0, 0.0
	for k, s := range d.Seconds {
		known[k] = load{s, 1}
		if d.Sizes != nil {
			known[k].bytes = float64(d.Sizes[k])
		}
		total += s
		bytes += known[k].bytes
	}
	slices.SortFunc(known, func(a, b load) int { return cmp.Compare(b.seconds/b.bytes, a.seconds/a.bytes) })
	c.Load = total / float64(len(known)) * float64(d.Samples) * d.Pace.Share
	c.ideal = make([]float64, len(known)+1)
	saved, used, next := 0.0, 0.0, 0
	for k := range known {
		room := bytes * float64(k+1) / float64(len(known))
		for ; next < len(known) && used+known[next].bytes <= room; next++ {
			saved += known[next].seconds
			used += known[next].bytes
		}
		c.ideal[k+1] = saved / total
		if next < len(known) { // a part of the next one
			c.ideal[k+1] += (room - used) / known[next].bytes * known[next].seconds / total
		}
	}
	c.ideal[len(known)] = 1
	c.sorted = known
	return c, c.simulate(seed, first, last)
}

// load is what a sample costs in time and in space; bytes is 1 if all are alike.
type load struct{ seconds, bytes float64 }

// trace is what one job reads that reads each sample once an epoch. Its samples are the quantiles of the known ones.
func (c *Curve) trace(seed uint64) (*simulate.Trace, error) {
	n := min(len(c.sorted), simulated)
	t, err := trace(n, seed)
	if err != nil {
		return nil, err
	}
	for k := range n {
		of := c.sorted[(2*k+1)*len(c.sorted)/(2*n)]
		t.Seconds = append(t.Seconds, of.seconds)
		if c.Sizes != nil {
			t.Sizes = append(t.Sizes, uint64(of.bytes))
		}
	}
	return t, nil
}

// simulate runs the policy cost at some steps.
func (c *Curve) simulate(seed uint64, first, last int) error {
	t, err := c.trace(seed)
	if err != nil {
		return err
	}
	c.reached, c.hits = make([]float64, Steps+1), make([]float64, Steps+1)
	for k := max(first, 1); k <= last; k++ {
		room := uint64(math.Round(float64(k) / Steps * float64(t.Room())))
		epochs := t.Run(policy.KindCost, room, simulate.Options{Seed: seed, Noise: c.Noise, Stalls: c.Stalls}, nil)
		c.hits[k] = epochs[simulatedEpochs-1].HitRate()
		best := at(c.ideal, float64(k)/Steps)
		if c.reached[k] = 1; best > 0 {
			c.reached[k] = min(epochs[simulatedEpochs-1].TimeSaved()/best, 1)
		}
	}
	c.reached[0] = c.reached[1]
	return nil
}

// Saving returns the part of the load time that a policy saves if this part of the samples is cached.
func (c *Curve) Saving(p Policy, part float64) float64 {
	part = min(max(part, 0), 1)
	switch p {
	case Ideal:
		return at(c.ideal, part)
	case Cost:
		return at(c.ideal, part) * at(c.reached, part)
	}
	return part
}

// at returns the value at a part of the way through values at equal steps.
func at(values []float64, part float64) float64 {
	x := part * float64(len(values)-1)
	k := min(int(x), len(values)-2)
	return values[k] + (values[k+1]-values[k])*(x-float64(k))
}

// Epoch returns the time of an epoch with this part of the samples cached, and what is the limit.
func (c *Curve) Epoch(p Policy, part float64) (seconds float64, limit string) {
	return c.Pace.Epoch(c.Load * (1 - c.Saving(p, part)))
}

// Measured returns the time of an epoch today, as measured.
func (c *Curve) Measured() float64 {
	if c.Today.Seconds > 0 {
		return c.Today.Seconds
	}
	seconds, _ := c.Pace.Epoch(c.Today.Load)
	return seconds
}

// Bytes returns the memory of a part of the samples.
func (c *Curve) Bytes(part float64) uint64 {
	return uint64(math.Round(part*float64(c.Samples))) * c.SampleBytes
}

// Part returns the part of the samples that fits in a memory.
func (c *Curve) Part(bytes uint64) float64 {
	return min(float64(bytes/c.SampleBytes)/float64(c.Samples), 1)
}

// nearly is the part of the time by which an epoch may be longer than with everything cached, where
// more memory is said to help no more.
const nearly = 0.01

// Enough returns the smallest part beyond which more memory does not help; 1: it helps up to the whole
// dataset.
func (c *Curve) Enough(p Policy) float64 {
	least, _ := c.Epoch(p, 1)
	const grid = 1000
	for k := range grid {
		part := float64(k) / grid
		if seconds, _ := c.Epoch(p, part); seconds <= least*(1+nearly) {
			return part
		}
	}
	return 1
}

// Next is what more memory buys.
type Next struct {
	Bytes   uint64
	Seconds [policies]float64 // how much shorter an epoch is, for each policy
}

// GiB returns what the next GiB buys, or all that is missing if that is less.
func (c *Curve) GiB() (n Next) {
	now := c.Bytes(c.Today.Part)
	n.Bytes = min(1<<30, c.Bytes(1)-min(now, c.Bytes(1)))
	for p := range policies {
		before, _ := c.Epoch(p, c.Today.Part)
		after, _ := c.Epoch(p, c.Part(now+n.Bytes))
		n.Seconds[p] = before - after
	}
	return n
}
