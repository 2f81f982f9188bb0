package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// usualNoise is that of measured times if no sample was loaded twice, as of `stocached simulate`.
const usualNoise = 0.3

// Cache reads the costs that a cache has measured. Its pace has one worker and no limits: a cache does
// not know its training loops.
func Cache(name string, seg *shm.Segment, c *cache.Cache) (*Data, error) {
	stats, err := c.Stats()
	if err != nil {
		return nil, err
	}
	samples := float64(seg.Samples)
	d := &Data{Name: name, Samples: int(seg.Samples), SampleBytes: seg.SlotStride,
		Noise: noise(policy.Spread(seg.Spread().Load())), Pace: Pace{Share: 1, Workers: 1},
		Today: Today{Part: float64(stats.Ready) / samples, Room: float64(seg.Slots) / samples, Policy: seg.Policy.String()}}
	if seg.Variable() {
		d.SampleBytes, d.Today.Room = stats.ReadyBytes/max(stats.Ready, 1), 0
		d.Notes = append(d.Notes, name+": its samples differ in size; all count as the cached ones do on average")
	}
	var known []measured
	part := make([]cache.Cost, min(seg.Samples, 1<<16))
	states := make([]cache.State, len(part))
	for first := uint64(0); first < seg.Samples; first += uint64(len(part)) {
		part = part[:min(uint64(len(part)), seg.Samples-first)]
		if err := c.Costs(int(first), part); err != nil {
			return nil, err
		}
		if err := c.States(int(first), states[:len(part)]); err != nil {
			return nil, err
		}
		for k, cost := range part {
			if cost != 0 {
				known = append(known, measured{math.Log(float64(cost.Nanoseconds()) / 1e9), cost.Confirmed(),
					states[k] == cache.StateReady})
			}
		}
	}
	if seg.Policy != shm.PolicyCost {
		return nil, d.check(fmt.Sprintf("cache %s has the policy %s, and only a cache with the policy cost measures "+
			"loads. Record a run instead: Loader(..., trace=\"run.json\"), then stocached advise run.json", name, d.Today.Policy))
	}
	d.believe(known)
	return d, d.check(fmt.Sprintf("cache %s has measured no load yet. Run an epoch whose loader stores into it, then "+
		"ask again", name))
}

// measured is a cost in one byte.
type measured struct {
	log     float64 // of seconds
	average bool
	ready   bool
}

// believe sets Seconds and Today.Load. Measured costs lie further apart than true ones do, and the
// costliest owe part of it to chance, so a cache would seem to save more than it does. If true costs
// and errors are lognormal, the true cost of a sample has a known distribution around its measured one,
// nearer to the mean. Seconds has one number drawn from it for each sample.
func (d *Data) believe(known []measured) {
	lift(known)
	n := float64(len(known))
	mean, spread, errors := 0.0, 0.0, 0.0
	for _, m := range known {
		mean += m.log / n
	}
	for _, m := range known {
		spread += (m.log - mean) * (m.log - mean) / n
		errors += m.variance(d.Noise) / n
	}
	truly := max(spread-errors, 0)
	saved, cached := 0.0, 0.0
	for k, m := range known {
		of := m.variance(d.Noise)
		weight, left := 1.0, 0.0
		if of > 0 {
			weight = truly / (truly + of)
			left = math.Sqrt(weight * of)
		}
		seconds := math.Exp(mean + weight*(m.log-mean) + left*simulate.Normal(uint64(k)))
		d.Seconds = append(d.Seconds, seconds)
		if m.ready {
			saved, cached = saved+seconds, cached+1
		}
	}
	total := 0.0
	for _, s := range d.Seconds {
		total += s / n * float64(d.Samples)
	}
	// A cached sample of unknown cost saves as much as others do.
	d.Today.Load = total - saved - max(d.Today.Part*float64(d.Samples)-cached, 0)*total/float64(d.Samples)
}

// lift raises the costliest hundredth. The policy counts a load above all others as the 99th percentile,
// in case the process was stopped. If none was stopped, and logarithms have a normal distribution, these
// loads continue the slope from the 90th to the 99th percentile. We take half of what they are longer.
func lift(known []measured) {
	slices.SortStableFunc(known, func(a, b measured) int { return cmp.Compare(a.log, b.log) })
	top := len(known) / 100
	if top == 0 {
		return
	}
	normal := func(quantile float64) float64 { return math.Sqrt2 * math.Erfinv(2*quantile-1) }
	tail := known[len(known)-top].log
	slope := (tail - known[len(known)*90/100].log) / (normal(0.99) - normal(0.9))
	for k := range top {
		m := &known[len(known)-top+k]
		above := slope * (normal(0.99+0.01*(float64(k)+0.5)/float64(top)) - normal(0.99))
		m.log = max(m.log, tail+math.Log((1+math.Exp(above))/2))
	}
}

// variance is that of the logarithm, if one measurement has this standard deviation. Averages of the
// policy cost come to a seventh.
func (m *measured) variance(noise float64) float64 {
	if m.average {
		return noise * noise / 3
	}
	return noise * noise
}

// noise is the standard deviation of a measurement's logarithm. Two measurements of a normal
// distribution are 2/sqrt(pi) standard deviations apart on average. The policy's allowance for averages
// adds some 3 %.
func noise(s policy.Spread) float64 {
	within, of := s.Within()
	if within == 0 {
		return usualNoise
	}
	return min(float64(within)/float64(of)*math.Ln2*math.Sqrt(math.Pi)/2/1.03, 1)
}
