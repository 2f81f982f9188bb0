// Package policy decides which sample may have which slot of a fixed-size cache. Its functions are
// pure functions of numbers, without locks, clock, history or I/O, so that the protocol in package
// cache and a simulator run the same code.
//
// A cache asks twice. Admit says whether a sample may have a slot, and which. For the answer Any,
// Next gives the slots in the order in which the cache tries them until one is free. No sample is
// ever evicted: each sample is read once per epoch, so with C slots for N samples no policy can hit
// more than C of N in an epoch, and a cache that keeps its samples does.
package policy

import (
	"errors"
	"fmt"
	"strings"
)

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
	kind  Kind
	slots uint64
	rule  Rule // nil: no sample ever goes
}

// Kind is a policy by its name. It is a small enum and no interface, because each set and state calls
// Admit, which inlines this way.
type Kind uint8

// The numbers are those of the header's field policy plus 1.
const (
	None Kind = iota
	KindFirstCome
	KindFirstIndices
	KindCost
	KindRandom
	KindClock
	KindFIFO
	KindLRU
	KindLFU
)

// kinds has the name of each policy, and makes the rule of those that evict.
var kinds = [...]struct {
	name string
	rule func(slots, seed uint64) Rule
}{
	None:             {"none", nil},
	KindFirstCome:    {"first-come", nil},
	KindFirstIndices: {"first-indices", nil},
	KindCost:         {"cost", cost},
	KindRandom:       {"random", newRandom},
	KindClock:        {"clock", newClock},
	KindFIFO:         {"fifo", newFIFO},
	KindLRU:          {"lru", newLRU},
	KindLFU:          {"lfu", newLFU},
}

// ErrUnknown is the error of Parse. Its text has the names that exist.
var ErrUnknown = errors.New("unknown policy")

// Parse returns the policy of a name.
func Parse(name string) (Kind, error) {
	for k := KindFirstCome; int(k) < len(kinds); k++ {
		if kinds[k].name == name {
			return k, nil
		}
	}
	return None, fmt.Errorf("%w %q; there are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Names returns the names of all policies.
func Names() (names []string) {
	for _, k := range kinds[KindFirstCome:] {
		names = append(names, k.name)
	}
	return names
}

// String returns the name that Parse reads.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k].name
	}
	return fmt.Sprintf("policy %d", uint8(k))
}

// Evicts says whether a cache with this policy may give the slot of one sample to another.
func (k Kind) Evicts() bool { return int(k) < len(kinds) && kinds[k].rule != nil }

// New returns the policy of a cache. The seed decides which slots a set looks at.
func (k Kind) New(slots, seed uint64) Policy {
	p := Policy{kind: k, slots: slots}
	if k.Evicts() {
		p.rule = kinds[k].rule(slots, seed)
	}
	return p
}

// FirstCome gives any sample the lowest free slot, while one is free. The samples that are read
// first stay.
func FirstCome(slots uint64) Policy { return Policy{kind: KindFirstCome, slots: slots} }

// FirstIndices gives sample i slot i if i is below slots, and no slot to others. So the same known
// samples are cached in each run.
func FirstIndices(slots uint64) Policy { return Policy{kind: KindFirstIndices, slots: slots} }

// Admit says whether a sample may have a slot. The slot is valid with Home only.
func (p Policy) Admit(sample uint64) (Verdict, uint64) {
	switch {
	case p.kind == KindFirstIndices:
		if sample < p.slots {
			return Home, sample
		}
	case p.kind != None && p.slots > 0:
		return Any, 0
	}
	return Never, 0
}

// Next returns the slot to try after all slots below from were taken. It returns false when none is
// left.
func (p Policy) Next(from uint64) (uint64, bool) { return from, p.kind != KindFirstIndices && from < p.slots }

// Rule returns the rule by which samples go; nil if none ever goes.
func (p Policy) Rule() Rule { return p.rule }
