package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Cache reads the costs that a cache has measured. Its pace has one worker and no limits: a cache does
// not know its training loops.
func Cache(name string, seg *shm.Segment, c *cache.Cache) (*Data, error) {
	stats, err := c.Stats()
	if err != nil {
		return nil, err
	}
	samples := float64(seg.Samples)
	d := &Data{Name: name, Samples: int(seg.Samples), SampleBytes: seg.SlotStride,
		Pace:  Pace{Share: 1, Workers: 1},
		Today: Today{Part: float64(stats.Ready) / samples, Room: float64(seg.Slots) / samples, Policy: seg.Policy.String()}}
	var known []measured
	lengths := lengths{}
	others, highest := float64(stats.Ready), math.Inf(-1)
	spread := policy.SpreadOf(seg.Spread().Load())
	states := make([]cache.State, min(seg.Samples, 1<<16))
	for first := uint64(0); first < seg.Samples; first += uint64(len(states)) {
		states = states[:min(uint64(len(states)), seg.Samples-first)]
		if err := c.States(int(first), states); err != nil {
			return nil, err
		}
		for k, state := range states {
			// Cache.Costs gives none for a doubtful sample. Without these, the costliest samples would lack.
			cost := policy.Cost(shm.Meta(seg.Meta(first + uint64(k)).Load()).Cost())
			if cost != 0 {
				loads := 1.0
				if cost.Confirmed() { // the average of two, which has the weight of seven
					loads = 3
				}
				m := measured{math.Log(float64(cost.Nanoseconds()) / 1e9), loads, state == cache.StateReady, 0}
				if cost.Doubtful(spread) { // seldom a stop, mostly one of the costliest samples
					m.log = math.Inf(1)
				} else {
					highest = max(highest, m.log)
				}
				if seg.Variable() {
					m.bytes = lengths.of(seg, first+uint64(k))
				}
				if known = append(known, m); m.ready {
					others--
				}
			}
		}
	}
	for k := range known {
		if math.IsInf(known[k].log, 1) {
			known[k].log = highest
		}
	}
	known = slices.DeleteFunc(known, func(m measured) bool { return math.IsInf(m.log, -1) }) // nothing else is known
	lift(known)
	if seg.Variable() {
		d.SampleBytes = lengths.mean()
		all := samples * float64(d.SampleBytes)
		room := stats.ReadyBytes // ends of slots hold nothing; nor do slots that are too few for a sample
		if free := seg.PayloadBytes - stats.ArenaNextBytes; free > max(d.SampleBytes, seg.PayloadBytes/64) {
			room += free
		}
		d.Today.Part, d.Today.Room = min(float64(stats.ReadyBytes)/all, 1), min(float64(room)/all, 1)
		unknown := 0
		for k := range known {
			if known[k].bytes == 0 {
				known[k].bytes = d.SampleBytes
				unknown++
			}
		}
		if unknown > 0 {
			d.Notes = append(d.Notes, fmt.Sprintf("%s: the sizes of %d of its samples are unknown; they count as the others "+
				"do on average", name, unknown))
		}
	}
	if p := policy.Kind(seg.Policy) + 1; p.NeedsHits() || p.NeedsPlans() { // programs that read otherwise choose them
		d.Notes = append(d.Notes, fmt.Sprintf("%s: all of this is about epochs that read each sample once, in one job; the "+
			"policy %v is for others, which stocached simulate knows", name, p))
	}
	d.believe(known, noise(policy.SpreadOf(seg.Spread().Load())), max(others, 0))
	next := "Run an epoch whose loader stores into it, then ask again"
	if seg.Policy != shm.PolicyCost { // a full cache may take no sample, and so no cost
		next += "; or record a run: Loader(..., trace=\"run.json\"), then stocached advise run.json"
	}
	return d, d.check(fmt.Sprintf("cache %s has measured no load yet. %s", name, next))
}

// lengths adds up what is known of the lengths of samples.
type lengths struct{ samples, bytes uint64 }

// of returns the length of a sample; 0: unknown.
func (l *lengths) of(seg *shm.Segment, sample uint64) uint64 {
	n := seg.Length(shm.Meta(seg.Meta(sample).Load()))
	if n > 0 {
		l.samples++
		l.bytes += n
	}
	return n
}

func (l *lengths) mean() uint64 { return max(l.bytes/max(l.samples, 1), 1) }

// noise is the standard deviation of a measurement's logarithm; 0: unknown. Two measurements of a normal
// distribution are 2/sqrt(pi) standard deviations apart on average. The policy's allowance for averages
// adds some 3 %.
func noise(s policy.Spread) float64 {
	within, of := s.Within()
	return min(float64(within)/float64(of)*math.Ln2*math.Sqrt(math.Pi)/2/1.03, 1)
}

// lift raises the costliest hundredth. The policy counts a load above the 99th percentile as this percentile, and one
// far above it as doubtful, in case the process was stopped. If none was stopped, and logarithms have a normal
// distribution, these loads continue the slope from the 90th to the 99th percentile. We take half of what they are longer.
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
