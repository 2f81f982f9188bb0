// Package policy decides which sample may have which slot of a fixed-size cache: pure functions of numbers, without locks, clock, memory
// of the past or I/O, so that the protocol in package cache and a simulator run the same code.
//
// A cache asks twice. Admit says whether a sample may have a slot at all, and which; where it answers Any, Next gives the slots in the
// order in which they are to be tried until one is free. Nothing is ever evicted: each sample is asked for once per epoch, so with C slots
// for N samples no policy can hit more than C of N in an epoch, and keeping what is there does exactly that.
package policy

import "fmt"

// Verdict is the answer to "may this sample have a slot?".
type Verdict uint8

const (
	Never Verdict = iota // it cannot have one: OUT
	Home                 // one slot is its own, always
	Any                  // whichever is free
)

// String returns the verdict's name.
func (v Verdict) String() string {
	switch v {
	case Never:
		return "never"
	case Home:
		return "home"
	case Any:
		return "any"
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Policy assigns slots 0..slots-1 to samples. The zero value admits nothing. Values are immutable; any number of goroutines may use one.
type Policy struct {
	kind  kind
	slots uint64
}

// kind selects the rule. A small enum and not an interface: Admit is on the path of every set and state, and inlines this way.
type kind uint8

const (
	none kind = iota
	firstCome
	firstIndices
)

// FirstCome gives any sample any free slot, the lowest first, while there is one: whatever is read first stays.
func FirstCome(slots uint64) Policy { return Policy{firstCome, slots} }

// FirstIndices gives sample i slot i if i is below slots, and the others none: which samples are cached is known beforehand and the same
// in every run.
func FirstIndices(slots uint64) Policy { return Policy{firstIndices, slots} }

// Admit says whether a sample may have a slot; the slot is meaningful with Home only.
func (p Policy) Admit(sample uint64) (Verdict, uint64) {
	switch {
	case p.kind == firstCome && p.slots > 0:
		return Any, 0
	case p.kind == firstIndices && sample < p.slots:
		return Home, sample
	}
	return Never, 0
}

// Next returns the slot to try when all slots below from were seen taken, and false when none is left.
func (p Policy) Next(from uint64) (uint64, bool) { return from, p.kind == firstCome && from < p.slots }
