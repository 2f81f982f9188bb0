package simulate

import (
	"slices"
	"testing"

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
func TestReferencesByHand(t *testing.T) {
	for _, c := range []struct {
		name        string
		room        uint64
		trace, want string
	}{
		{"exact-lru", 2, "abacb", "..H.."},    // c makes b go
		{"exact-lfu", 2, "aabcba", ".H...H"},  // c makes b go, then b makes c go
		{"exact-lfu", 3, "abcda", "....."},    // without hits, the oldest goes
		{"sieve", 3, "abcadabc", "...H.H.."},  // d: the hand passes a, which had a hit, and takes b
		{"belady", 2, "abcabcab", "...HH.HH"}, // c never enters
		{"belady", 1, "abbba", "..HH."},
		{"ideal", 1, "abbba", "..HH."},
		{"s3-fifo", 2, "abab", "..HH"},
		{"2q", 4, "aabcdefa", ".H.....H"}, // what was read twice is not in the queue of the first reads
		{"2q", 1, "aa", ".."},             // its queues have no room
		{"arc", 2, "aabcda", ".H...H"},    // the same
		{"arc", 2, "abcacb", "....H."},    // a, which has gone, makes b go and not c
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
