package simulate

import (
	"fmt"
	"math"

	"github.com/stocached/stocached/policy"
)

// Trace is what jobs read, in this order.
type Trace struct {
	Samples  int      // their number; accesses are below it
	Accesses []uint32 // samples, of all epochs
	Ends     []int    // of each epoch in Accesses
	// Once says that each job reads each sample once an epoch.
	Once    bool
	Seconds []float64 // to load each sample; nil: alike
	Sizes   []uint64  // of each sample, in bytes; nil: alike
}

// MaxAccesses is the most accesses of a trace. Each takes 4 bytes, and 4 more with belady.
const MaxAccesses = 1 << 29

// second of a load if all loads are alike.
const alike = 0.01

func (t *Trace) seconds(sample uint32) float64 {
	if t.Seconds == nil {
		return alike
	}
	return t.Seconds[sample]
}

func (t *Trace) size(sample uint32) uint64 {
	if t.Sizes == nil {
		return 1
	}
	return t.Sizes[sample]
}

// Bytes returns the size of all samples.
func (t *Trace) Bytes() (total uint64) {
	if t.Sizes == nil {
		return uint64(t.Samples)
	}
	for _, n := range t.Sizes {
		total += n
	}
	return total
}

// noise is the relative error of a measured load: 30 %, and 1 load in 200 takes 20 times as long.
const (
	noise      = 0.3
	stallEvery = 200
	stall      = 20
)

// measured returns the nanoseconds that a load of a sample takes in an epoch. They are the same for
// all policies.
func (t *Trace) measured(seed uint64, sample uint32, epoch int, noise float64, stalls bool) uint64 {
	r := policy.Random(seed, uint64(sample)<<24|uint64(epoch))
	s := t.seconds(sample) * math.Exp(noise*normal(r))
	if stalls && policy.Random(r, 2)%stallEvery == 0 {
		s *= stall
	}
	return uint64(min(s*1e9, math.MaxInt64))
}

// normal returns a number of the standard normal distribution.
func normal(r uint64) float64 {
	u := (float64(policy.Random(r, 0)>>11) + 0.5) / (1 << 53)
	v := float64(policy.Random(r, 1)>>11) / (1 << 53)
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// Lognormal gives samples costs whose logarithms have a standard deviation.
func Lognormal(samples int, sigma float64, seed uint64) []float64 {
	costs := make([]float64, samples)
	for k := range costs {
		costs[k] = alike * math.Exp(sigma*normal(policy.Random(seed^costSeed, uint64(k))))
	}
	return costs
}

const costSeed = 0x636f737473 // so that costs and order differ

var _ = fmt.Sprint
