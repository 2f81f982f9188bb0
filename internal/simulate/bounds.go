package simulate

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/stocached/stocached/policy"
)

// bounds are what any policy can do, to compare with. They read sample by sample.
var bounds = []struct {
	name string
	make func(t *Trace, room uint64) cache
}{{"belady", newBelady}, {"ideal", newIdeal}}

// boundOf returns what makes the bound of a name; nil: there is none.
func boundOf(name string) func(t *Trace, room uint64) cache {
	for _, b := range bounds {
		if b.name == name {
			return b.make
		}
	}
	return nil
}

// counted counts replaced samples, and the room that is taken.
type counted struct {
	trace *Trace
	room  uint64
	used  uint64
	gone  uint64
}

func (c *counted) replaced() uint64 { return c.gone }

// fits says whether a sample fits after others have gone.
func (c *counted) fits(sample uint32) bool { return c.trace.size(sample) <= c.room }

func (c *counted) full(sample uint32) bool { return c.used+c.trace.size(sample) > c.room }

func (c *counted) enters(sample uint32) { c.used += c.trace.size(sample) }

func (c *counted) leaves(sample uint32) {
	c.used -= c.trace.size(sample)
	c.gone++
}

// ranked is a heap of the samples of a cache, with the one that goes first on top.
type ranked struct {
	samples []uint32
	key     []uint64 // of each sample
	place   []int32  // of each sample in samples; -1: none
}

func newRanked(samples int) ranked {
	r := ranked{key: make([]uint64, samples), place: make([]int32, samples)}
	for k := range r.place {
		r.place[k] = -1
	}
	return r
}

func (r *ranked) Len() int           { return len(r.samples) }
func (r *ranked) Less(a, b int) bool { return r.key[r.samples[a]] < r.key[r.samples[b]] }
func (r *ranked) Swap(a, b int) {
	r.samples[a], r.samples[b] = r.samples[b], r.samples[a]
	r.place[r.samples[a]], r.place[r.samples[b]] = int32(a), int32(b)
}

func (r *ranked) Push(x any) {
	r.place[x.(uint32)] = int32(len(r.samples))
	r.samples = append(r.samples, x.(uint32))
}

func (r *ranked) Pop() any {
	last := len(r.samples) - 1
	sample := r.samples[last]
	r.samples, r.place[sample] = r.samples[:last], -1
	return sample
}

func (r *ranked) has(sample uint32) bool { return r.place[sample] >= 0 }
func (r *ranked) top() uint32            { return r.samples[0] }

func (r *ranked) set(sample uint32, key uint64) {
	r.key[sample] = key
	if r.has(sample) {
		heap.Fix(r, int(r.place[sample]))
	} else {
		heap.Push(r, sample)
	}
}

// belady evicts the sample whose next read is farthest away, the new one too.
type belady struct {
	counted
	ranked
	future *future
}

// future knows when each sample of a trace is read next.
type future struct {
	at    int
	after []uint32 // position of the next read of the sample at each position
	of    []uint32 // position of the next read of each sample
}

const unread = 1<<32 - 1

// newFuture knows a trace and what is planned after it. Belady's rule, the bound for what a policy can hit, knows the
// trace alone.
func newFuture(t *Trace, planned []uint32) *future {
	f := &future{after: make([]uint32, len(t.Accesses)), of: make([]uint32, t.Samples)}
	for k := range f.of {
		f.of[k] = unread
	}
	for k := len(planned) - 1; k >= 0; k-- {
		f.of[planned[k]] = uint32(len(t.Accesses) + k)
	}
	for k := len(t.Accesses) - 1; k >= 0; k-- {
		f.after[k], f.of[t.Accesses[k]] = f.of[t.Accesses[k]], uint32(k)
	}
	return f
}

// pass moves on after the read of a sample, and returns the position of its next one.
func (f *future) pass(sample uint32) uint32 {
	f.of[sample] = f.after[f.at]
	f.at++
	return f.of[sample]
}

// next is in how many reads a sample is read, as policy.Candidate has it.
func (f *future) next(sample uint32) uint64 {
	if f.of[sample] == unread {
		return policy.Unread
	}
	return uint64(f.of[sample]) - uint64(f.at) + 1
}

func newBelady(t *Trace, room uint64) cache {
	return &belady{counted: counted{trace: t, room: room}, ranked: newRanked(t.Samples), future: newFuture(t, nil)}
}

func (c *belady) access(sample uint32, _ int) bool {
	next := uint64(unread - c.future.pass(sample))
	if c.has(sample) {
		c.set(sample, next)
		return true
	}
	if !c.fits(sample) || next == 0 {
		return false
	}
	for c.full(sample) {
		if c.key[c.top()] >= next {
			return false
		}
		c.leaves(heap.Pop(&c.ranked).(uint32))
	}
	c.enters(sample)
	c.set(sample, next)
	return false
}

// ideal keeps one set: the samples whose loads take most time in the whole trace, per byte. The first
// read of each is no hit.
type ideal struct {
	counted
	chosen, read []bool
}

func newIdeal(t *Trace, room uint64) cache {
	c := &ideal{counted{trace: t, room: room}, make([]bool, t.Samples), make([]bool, t.Samples)}
	worth := make([]float64, t.Samples)
	for _, sample := range t.Accesses {
		worth[sample] += t.seconds(sample) / float64(t.size(sample))
	}
	best := make([]uint32, t.Samples)
	for k := range best {
		best[k] = uint32(k)
	}
	slices.SortStableFunc(best, func(a, b uint32) int { return cmp.Compare(worth[b], worth[a]) })
	for _, sample := range best {
		if !c.full(sample) {
			c.enters(sample)
			c.chosen[sample] = true
		}
	}
	return c
}

func (c *ideal) has(sample uint32) bool { return c.chosen[sample] && c.read[sample] }

func (c *ideal) access(sample uint32, _ int) bool {
	hit := c.chosen[sample] && c.read[sample]
	c.read[sample] = true
	return hit
}
