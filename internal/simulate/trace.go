package simulate

import (
	"errors"
	"math"
	"slices"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// ErrInvalid is the error of settings that make no sense.
var ErrInvalid = errors.New("invalid simulation")

// ErrTrace is the error of a file that is no trace.
var ErrTrace = errors.New("not a trace")

// MaxAccesses is the most reads of a trace. Each takes 4 bytes.
const MaxAccesses = 1 << 29

// Trace is what jobs read from one cache, or nodes from caches of their own.
type Trace struct {
	Samples int          // their number; reads are below it
	Epochs  [][][]uint32 // the samples that each job or node reads in each epoch
	Batch   int          // samples of the largest batch of a recorded loader; 0: unknown
	Planned [][]uint32   // what the jobs will read after Epochs, which their plans say already; nil: unknown

	owners *order.Owners // owners of nodes with affinity
	kept   []*order.Kept // what the cache of each node takes; nil: jobs, which have one cache

	Seconds     []float64 // to load each sample; nil: alike
	Sizes       []uint64  // bytes of each sample; nil: alike. Only for policies that evict, without plans
	SampleBytes uint64    // bytes of a sample if all are alike; 0: unknown
	Notes       []string  // for people, about what the trace does not hold
}

// Reads returns the number of reads of all epochs.
func (t *Trace) Reads() (reads int) {
	for _, readers := range t.Epochs {
		for _, samples := range readers {
			reads += len(samples)
		}
	}
	return reads
}

// secondsAlike is the time of a load if all loads take the same.
const secondsAlike = 0.01

func (t *Trace) seconds(sample uint32) float64 {
	if t.Seconds == nil {
		return secondsAlike
	}
	return t.Seconds[sample]
}

// Room returns the size of all samples in units of the room of a cache.
func (t *Trace) Room() (total uint64) {
	if t.Sizes == nil {
		return uint64(t.Samples)
	}
	for _, n := range t.Sizes {
		total += n
	}
	return total
}

// Typical returns the median size of samples that differ in size. Loaders and servers choose the size of slots by it.
func (t *Trace) Typical() uint64 {
	sizes := slices.Sorted(slices.Values(t.Sizes))
	return sizes[len(sizes)/2]
}

// Stalls: one load in stallEvery takes stall times as long.
const (
	stallEvery = 200
	stall      = 20
)

// measured returns the nanoseconds that a load of a sample takes in an epoch. They are the same for
// all policies.
func (t *Trace) measured(o Options, seed uint64, sample uint32, epoch int) uint64 {
	r := policy.Random(seed, uint64(sample)<<24|uint64(epoch))
	s := t.seconds(sample) * math.Exp(o.Noise*Normal(r))
	if o.Stalls && policy.Random(r, 2)%stallEvery == 0 {
		s *= stall
	}
	return uint64(min(s*1e9, math.MaxInt64/2))
}

// Normal returns a number of the standard normal distribution.
func Normal(r uint64) float64 {
	u := (float64(policy.Random(r, 0)>>11) + 0.5) / (1 << 53)
	v := float64(policy.Random(r, 1)>>11) / (1 << 53)
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// Lognormal returns times of loads whose logarithms have this standard deviation.
func Lognormal(samples int, sigma float64, seed uint64) []float64 {
	const costs = 0x636f737473 // so that costs and order differ
	seconds := make([]float64, samples)
	for k := range seconds {
		seconds[k] = secondsAlike * math.Exp(sigma*Normal(policy.Random(seed^costs, uint64(k))))
	}
	return seconds
}
