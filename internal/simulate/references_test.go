package simulate

import (
	"slices"
	"testing"

	"github.com/stocached/stocached/order"
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
	c := t.cache(name, room, &Options{})
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

// planned searches its table as package policy searches slots: the same hits, slots, victims and hand.
func TestPlannedIsThePolicys(t *testing.T) {
	for _, jobs := range []int{1, 2, 3} {
		trace, err := Jobs{Order: order.Order{Samples: 500, Kind: order.Shuffled, Seed: 1}, Epochs: 5, Jobs: jobs}.Trace()
		if err != nil {
			t.Fatal(err)
		}
		for _, sized := range []bool{false, true} {
			if sized {
				for k := range 500 {
					trace.Sizes = append(trace.Sizes, 1+policy.Random(1, uint64(k))%50)
				}
			}
			for _, part := range []uint64{2, 3, 10, 300} {
				room := trace.Room() / part
				table := newPolicyCache(trace, &busy, policy.KindPlanned, room)
				slots := newPolicyCache(trace, &busy, policy.KindPlanned, room)
				slots.plans = nil
				future := newFuture(trace)
				slots.next = future.next
				for k, sample := range trace.Accesses {
					future.pass(sample)
					table.victim, slots.victim = -1, -1
					hit, want := table.access(sample, 0), slots.access(sample, 0)
					if hit != want || table.victim != slots.victim || table.slotOf[sample] != slots.slotOf[sample] ||
						table.hand != slots.hand || table.moved != slots.moved {
						t.Fatalf("%d jobs, sizes %v, room %d, read %d: %v, victim %d, slot %d, hand %d; want %v, %d, %d, %d", jobs, sized,
							room, k, hit, table.victim, table.slotOf[sample], table.hand, want, slots.victim, slots.slotOf[sample],
							slots.hand)
					}
				}
				if table.moved == 0 && room > 1 {
					t.Errorf("%d jobs, sizes %v, room %d: no sample went", jobs, sized, room)
				}
			}
		}
	}
}
