package simulate

import (
	"container/heap"

	"github.com/hashicorp/golang-lru/arc/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// reference is an exact policy to compare with. No cache of ours has it.
type reference struct {
	name string
	help string
	// counts says that it counts samples and no bytes.
	counts bool
	make   func(t *Trace, room uint64) cache
}

var references = []reference{
	{"exact-lru", "exact LRU", false, newExactLRU},
	{"2q", "2Q", true, func(_ *Trace, room uint64) cache { return newTwoQueues(room) }},
	{"arc", "ARC", true, func(_ *Trace, room uint64) cache { return newARC(room) }},
	{"exact-lfu", "LFU that counts the hits of the samples that it holds", false, newExactLFU},
	{"sieve", "SIEVE", false, newSieve},
	{"s3-fifo", "S3-FIFO", false, newS3FIFO},
	{"belady", "keeps what is read next: most hits", false, newBelady},
	{"ideal", "keeps, from the second epoch on, the set that saves most time", false, newIdeal},
}

// counted counts replaced samples, and the room that is taken.
type counted struct {
	trace *Trace
	room  uint64
	used  uint64
	gone  int
}

func (c *counted) replaced() int { return c.gone }

// fits says whether a sample fits after others have gone.
func (c *counted) fits(sample uint32) bool { return c.trace.size(sample) <= c.room }

func (c *counted) full(sample uint32) bool { return c.used+c.trace.size(sample) > c.room }

func (c *counted) enters(sample uint32) { c.used += c.trace.size(sample) }

func (c *counted) leaves(sample uint32) {
	c.used -= c.trace.size(sample)
	c.gone++
}

type exactLRU struct {
	counted
	list *simplelru.LRU[uint32, struct{}]
}

func newExactLRU(t *Trace, room uint64) cache {
	list, err := simplelru.NewLRU[uint32, struct{}](t.Samples+1, nil)
	if err != nil {
		panic(err) // the size is above 0
	}
	return &exactLRU{counted{trace: t, room: room}, list}
}

func (c *exactLRU) access(sample uint32, _ int) bool {
	if _, hit := c.list.Get(sample); hit {
		return true
	}
	if !c.fits(sample) {
		return false
	}
	for c.full(sample) {
		victim, _, _ := c.list.RemoveOldest()
		c.leaves(victim)
	}
	c.enters(sample)
	c.list.Add(sample, struct{}{})
	return false
}

// adapter makes a cache of one of golang-lru.
type adapter struct {
	get   func(uint32) bool
	add   func(uint32)
	len   func() int
	added int
}

func (c *adapter) access(sample uint32, _ int) bool {
	if c.get == nil {
		return false
	}
	if c.get(sample) {
		return true
	}
	c.add(sample)
	c.added++
	return false
}

func (c *adapter) replaced() int {
	if c.get == nil {
		return 0
	}
	return c.added - c.len()
}

func newTwoQueues(room uint64) cache {
	c, err := lru.New2Q[uint32, struct{}](int(room))
	if err != nil { // no room
		return &adapter{}
	}
	return &adapter{func(s uint32) bool { _, hit := c.Get(s); return hit }, func(s uint32) { c.Add(s, struct{}{}) }, c.Len, 0}
}

func newARC(room uint64) cache {
	if room == 0 {
		return &adapter{}
	}
	c, err := arc.NewARC[uint32, struct{}](int(room))
	if err != nil {
		return &adapter{}
	}
	return &adapter{func(s uint32) bool { _, hit := c.Get(s); return hit }, func(s uint32) { c.Add(s, struct{}{}) }, c.Len, 0}
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

// exactLFU evicts the sample with the fewest hits since it came; of those, the oldest.
type exactLFU struct {
	counted
	ranked
	hits []uint32
	time uint64
}

func newExactLFU(t *Trace, room uint64) cache {
	return &exactLFU{counted: counted{trace: t, room: room}, ranked: newRanked(t.Samples), hits: make([]uint32, t.Samples)}
}

func (c *exactLFU) access(sample uint32, _ int) bool {
	c.time++
	if c.has(sample) {
		c.hits[sample]++
		c.set(sample, uint64(min(c.hits[sample], 1<<24-1))<<40|c.time)
		return true
	}
	if !c.fits(sample) {
		return false
	}
	for c.full(sample) {
		c.leaves(heap.Pop(&c.ranked).(uint32))
	}
	c.enters(sample)
	c.hits[sample] = 0
	c.set(sample, c.time)
	return false
}

// belady evicts the sample whose next read is farthest away, the new one too.
type belady struct {
	counted
	ranked
	next []uint32 // position of the next read of the sample at each position
	at   int
}

func newBelady(t *Trace, room uint64) cache {
	c := &belady{counted: counted{trace: t, room: room}, ranked: newRanked(t.Samples), next: make([]uint32, len(t.Accesses))}
	last := make([]uint32, t.Samples)
	for k := range last {
		last[k] = 1<<32 - 1
	}
	for k := len(t.Accesses) - 1; k >= 0; k-- {
		c.next[k], last[t.Accesses[k]] = last[t.Accesses[k]], uint32(k)
	}
	return c
}

func (c *belady) access(sample uint32, _ int) bool {
	next := uint64(1<<32 - 1 - c.next[c.at])
	c.at++
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
