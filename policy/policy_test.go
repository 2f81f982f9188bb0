package policy_test

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/policy"
)

// run plays a trace of samples that are each set once, and returns the slot of each, -1 for none.
// It is the protocol without concurrency.
func run(p policy.Policy, slots int, trace []uint64) []int {
	holder := make([]int, slots) // sample + 1, 0: free
	got := make([]int, 0, len(trace))
	for _, sample := range trace {
		verdict, home := p.Admit(sample)
		slot := -1
		switch verdict {
		case policy.Home:
			slot = int(home)
		case policy.Any:
			for s, ok := p.Next(0); ok; s, ok = p.Next(s + 1) {
				if holder[s] == 0 {
					slot = int(s)
					break
				}
			}
		}
		if slot >= 0 {
			if holder[slot] != 0 {
				panic("slot given twice")
			}
			holder[slot] = int(sample) + 1
		}
		got = append(got, slot)
	}
	return got
}

// The exact slots each policy gives on a fixed trace.
func TestPoliciesOnAFixedTrace(t *testing.T) {
	trace := []uint64{7, 0, 3, 9, 1, 2, 8}
	for _, test := range []struct {
		name  string
		p     policy.Policy
		slots int
		want  []int
	}{
		{"first come", policy.KindFirstCome.New(4, 0), 4, []int{0, 1, 2, 3, -1, -1, -1}},
		{"first come, room for all", policy.KindFirstCome.New(9, 0), 9, []int{0, 1, 2, 3, 4, 5, 6}},
		{"first indices", policy.KindFirstIndices.New(4, 0), 4, []int{-1, 0, 3, -1, 1, 2, -1}},
		{"first indices, room for all", policy.KindFirstIndices.New(10, 0), 10, []int{7, 0, 3, 9, 1, 2, 8}},
		{"zero value", policy.Policy{}, 4, []int{-1, -1, -1, -1, -1, -1, -1}},
		{"no slots", policy.KindFirstCome.New(0, 0), 0, []int{-1, -1, -1, -1, -1, -1, -1}},
	} {
		expect.Slice(t, run(test.p, test.slots, trace), test.want, "%v", test.name)
	}
}
