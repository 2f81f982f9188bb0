// Package policy decides which sample may have which slot of a fixed-size cache. Its functions are
// pure functions of numbers, without locks, clock, history or I/O, so that the protocol in package
// cache and a simulator run the same code.
//
// A cache asks twice. Admit says whether a sample may have a slot, and which. For the answer Any,
// Next gives the slots in the order in which the cache tries them until one is free. No sample is
// ever evicted: each sample is read once per epoch, so with C slots for N samples no policy can hit
// more than C of N in an epoch, and a cache that keeps its samples does.
package policy

import "fmt"

// Verdict is the answer to "may this sample have a slot?".
type Verdict uint8

const (
	Never Verdict = iota // it can have no slot: OUT
	Home                 // it has a fixed slot of its own
	Any                  // it may have any free slot
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

// Policy assigns slots 0..slots-1 to samples. The zero value admits nothing. Values are immutable,
// and safe for concurrent use.
type Policy struct {
	kind  kind
	slots uint64
}

// kind selects the rule. It is a small enum and no interface, because each set and state calls
// Admit, which inlines this way.
type kind uint8

const (
	none kind = iota
	firstCome
	firstIndices
)

// FirstCome gives any sample the lowest free slot, while one is free. The samples that are read
// first stay.
func FirstCome(slots uint64) Policy { return Policy{firstCome, slots} }

// FirstIndices gives sample i slot i if i is below slots, and no slot to others. So the same known
// samples are cached in each run.
func FirstIndices(slots uint64) Policy { return Policy{firstIndices, slots} }

// Admit says whether a sample may have a slot. The slot is valid with Home only.
func (p Policy) Admit(sample uint64) (Verdict, uint64) {
	switch {
	case p.kind == firstCome && p.slots > 0:
		return Any, 0
	case p.kind == firstIndices && sample < p.slots:
		return Home, sample
	}
	return Never, 0
}

// Next returns the slot to try after all slots below from were taken. It returns false when none is
// left.
func (p Policy) Next(from uint64) (uint64, bool) { return from, p.kind == firstCome && from < p.slots }
