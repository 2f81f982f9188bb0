package simulate

import (
	"container/heap"
	"slices"
	"testing"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stocached/stocached/policy"
)

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
	c := t.cache(name, room, &Options{}, nil)
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
