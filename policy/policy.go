// Package policy decides which sample may have which slot of a cache. Its functions are pure
// functions of numbers, without locks, clock, history or I/O, so that the protocol in package cache,
// its C port and the simulator (internal/simulate) decide alike. docs/spec/policies.md is normative.
//
// A cache asks in two steps. Admit says whether a sample may have a slot, and which. For the answer
// Any, Next gives the slots in the order in which the cache tries them until one is free. If none is
// free and the policy has a Rule, a Search looks at some slots and says which sample goes, if any.
// Without a Rule no sample ever goes: if each sample is read once an epoch, no policy can hit more
// than C of N samples with C slots, and a cache that keeps its samples does.
//
// What policies remember lies in the cache: the cost of each sample in a byte (Cost), a reference
// byte for each slot, and two words that all clients share, the hand and the spread of costs
// (Spread). There is one file for each policy. The table kinds has all names.
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

// Policy assigns slots 0..slots-1 to samples. The zero value admits nothing. Values are immutable,
// and safe for concurrent use.
type Policy struct {
	kind  Kind
	slots uint64
	rule  Rule // nil: no sample ever goes
}

// Kind is a policy by its name. Policy has a small enum and no interface for what each
// set and state asks: Admit inlines this way.
type Kind uint8

// The numbers are those of the field policy in the header of a segment, plus 1.
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
	KindPlanned
)

// kinds is the table of all policies.
var kinds = [...]struct {
	name       string
	rule       func(slots, seed uint64) Rule // nil: no sample ever goes
	costs      bool                          // it needs the costs of loads
	references bool                          // hits write reference bytes
	plans      bool                          // it needs the plans of jobs
}{
	None:             {name: "none"},
	KindFirstCome:    {name: "first-come"},
	KindFirstIndices: {name: "first-indices"},
	KindCost:         {name: "cost", rule: newCostly, costs: true},
	KindRandom:       {name: "random", rule: newRandom},
	KindClock:        {name: "clock", rule: newClock, references: true},
	KindFIFO:         {name: "fifo", rule: newFIFO},
	KindLRU:          {name: "lru", rule: newLRU, references: true},
	KindLFU:          {name: "lfu", rule: newLFU, references: true},
	KindPlanned:      {name: "planned", rule: newPlanned, plans: true},
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

// NeedsCosts says whether the policy decides by the costs of loads.
func (k Kind) NeedsCosts() bool { return int(k) < len(kinds) && kinds[k].costs }

// NeedsHits says whether a hit may change the reference byte of its slot: Hits.
func (k Kind) NeedsHits() bool { return int(k) < len(kinds) && kinds[k].references }

// NeedsPlans says whether the policy decides by when samples are read next, which only a client that
// knows the plans of jobs can say.
func (k Kind) NeedsPlans() bool { return int(k) < len(kinds) && kinds[k].plans }

// New returns the policy of a cache. The seed decides which slots a set looks at.
func (k Kind) New(slots, seed uint64) Policy {
	p := Policy{kind: k, slots: slots}
	if k.Evicts() {
		p.rule = kinds[k].rule(slots, seed)
	}
	return p
}

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
func (p Policy) Next(from uint64) (uint64, bool) {
	return from, p.kind != KindFirstIndices && from < p.slots
}

// Rule returns the rule by which samples go; nil if none ever goes.
func (p Policy) Rule() Rule { return p.rule }
