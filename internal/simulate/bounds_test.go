package simulate

import (
	"cmp"
	"container/heap"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/stocached/stocached/policy"
	"slices"
	"testing"
)

// bounds are what any policy can do, to compare with. They read sample by sample.
var bounds = map[string]func(t *Trace, room uint64) cache{"belady": newBelady, "ideal": newIdeal}

// runBound is Run of a bound.
func runBound(t *Trace, c cache) []Epoch {
	epochs, at := make([]Epoch, len(t.Ends)), 0
	for number, end := range t.Ends {
		e, before := &epochs[number], c.replaced()
		e.Reads = uint64(end - at)
		for ; at < end; at++ {
			seconds := t.seconds(t.Accesses[at])
			e.Seconds += seconds
			if c.access(t.Accesses[at], number) {
				e.Hits++
				e.Saved += seconds
			}
		}
		e.Replaced = c.replaced() - before
	}
	return epochs
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

// small returns a trace of letters.
func letters(text string) *Trace {
	t := &Trace{Samples: 26}
	for _, r := range text {
		t.Accesses = append(t.Accesses, uint32(r-'a'))
	}
	t.Ends = []int{len(text)}
	return t
}

// hits returns which reads are hits, as a text.
func hits(t *Trace, name string, room uint64) string {
	c := bounds[name](t, room)
	var out []byte
	for _, sample := range t.Accesses {
		out = append(out, map[bool]byte{false: '.', true: 'H'}[c.access(sample, 0)])
	}
	return string(out)
}

// Traces whose hits were found by hand.
func TestBoundsByHand(t *testing.T) {
	for _, c := range []struct {
		name        string
		room        uint64
		trace, want string
	}{
		{"belady", 2, "abcabcab", "...HH.HH"}, // c never enters
		{"belady", 1, "abbba", "..HH."},
		{"ideal", 1, "abbba", "..HH."},
	} {
		if got := hits(letters(c.trace), c.name, c.room); got != c.want {
			t.Errorf("%s of %s with %d: %s, want %s", c.name, c.trace, c.room, got, c.want)
		}
	}
}

// best returns the most hits that any decisions can have, by trying all.
func best(accesses []uint32, held []uint32, room int) int {
	if len(accesses) == 0 {
		return 0
	}
	sample, rest := accesses[0], accesses[1:]
	if slices.Contains(held, sample) {
		return 1 + best(rest, held, room)
	}
	most := best(rest, held, room) // it does not enter
	if len(held) < room {
		return max(most, best(rest, append(slices.Clone(held), sample), room))
	}
	for k := range held {
		other := slices.Clone(held)
		other[k] = sample
		most = max(most, best(rest, other, room))
	}
	return most
}

// Belady has as many hits as any decisions can have, and no other policy has more.
func TestBeladyIsBest(t *testing.T) {
	for seed := range uint64(40) {
		trace := &Trace{Samples: 5, Ends: []int{11}}
		for k := range uint64(11) {
			trace.Accesses = append(trace.Accesses, uint32(policy.Random(seed, k)%5))
		}
		want := best(trace.Accesses, nil, 2)
		for _, name := range allNames() {
			got := run(t, trace, name, 2, Options{})[0].Hits
			if got > uint64(want) || name == "belady" && got != uint64(want) {
				t.Errorf("%v: %s has %d hits, the most are %d", trace.Accesses, name, got, want)
			}
		}
	}
}

// exactLRU and exactLFU are what our policies come close to.
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

func (c *exactLRU) has(sample uint32) bool { return c.list.Contains(sample) }

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

// exactLFU evicts the sample with the fewest hits since it came; of those, the oldest.
type exactLFU struct {
	counted
	ranked
	hits []uint32
	time uint64
}

func newExactLFU(t *Trace, room uint64) cache {
	return &exactLFU{counted: counted{trace: t, room: room}, ranked: newRanked(t.Samples),
		hits: make([]uint32, t.Samples)}
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

// rates returns the hit rates of a cache by epoch.
func rates(t *Trace, c cache) (all []float64) {
	hits, at := 0, 0
	for k, sample := range t.Accesses {
		if c.access(sample, 0) {
			hits++
		}
		if k+1 == t.Ends[len(all)] {
			all = append(all, float64(hits)/float64(k+1-at))
			hits, at = 0, k+1
		}
	}
	return all
}
