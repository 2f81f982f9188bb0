package model

import (
	"time"

	"github.com/stocached/stocached/policy"
)

// What one set does at most, as in package policy and in the code.
const (
	looks    = 5 // at slots, in one search
	searches = 4 // when other clients take its victims
)

// Times of loads: so far apart that the policy cost always tells them apart, and never two of the same. Nor is one of
// them doubtful.
const (
	cheap = time.Millisecond
	dear  = 3 * time.Millisecond
)

func init() {
	table[evictSpread] = func(x *execution) {
		x.accesses++
		x.t().spread, x.t().pc = x.s.spread, evictHand
	}
	// Step 5, first-come with a policy that evicts, when no slot is free. Which slot the policy
	// chooses does not matter to the protocol: here the hand gives one after the other, as for fifo.
	table[evictHand] = func(x *execution) {
		t := x.t()
		if x.y.rule != nil && int(t.tries) == x.y.rule.Looks() {
			if t.number, t.pc = 0, evictAgain; t.best == 0 || x.y.refuses() && !x.yields() {
				t.result, t.pc = Full, abortWord
				t.best, t.worth, t.cost = 0, 0, 0
			}
			t.spread = 0
			return
		}
		if x.y.rule == nil && t.tries == looks {
			if t.result, t.pc = Full, abortWord; x.y.Chains {
				x.giveUp(Full)
			}
			return
		}
		t.tries++
		turn := value(x.y.Places)
		if x.y.refers {
			turn = 1 << 15 // decisions depend on all of it
		}
		t.number = x.add(handAddr, turn)
		t.s, t.pc = uint8(t.number%value(x.y.Places)), evictTable
		if x.y.rule == nil {
			t.number = 0
		}
	}
	// The victim is READY and names exactly this slot. Else the hand moves on.
	table[evictTable] = func(x *execution) {
		t := x.t()
		v := x.load(tableOf(t.s))
		switch {
		case x.y.Chains && v == 0:
			t.pc = chainIntent
		case x.y.Chains && (holderOf(v) == x.op().Sample+1 || nextOf(v) != 0):
			t.tries, t.pc = t.tries-1, evictHand // no look, as fifo
		case x.y.Chains:
			t.v, t.pc = value(holderOf(v)), removeLook
		case v == 0:
			t.pc = slotIntent // it was freed, and free_from may never say so: who freed it may be dead
		case v == value(x.op().Sample)+1:
			t.pc = evictHand
		default:
			t.v, t.pc = v, evictLook
		}
	}
	table[evictLook] = func(x *execution) {
		t := x.t()
		u := x.load(wordOf(uint8(t.v) - 1))
		if stateOf(u) != ready || placeOf(u) != t.s+1 && !x.broken(VictimElsewhere) {
			t.v, t.pc = 0, evictHand
			return
		}
		t.f, t.pc = u, evictIntent
		if x.y.rule != nil {
			t.f, t.pc = 0, evictReference
		}
	}
	// A policy looks at several slots, and chooses the sample of least worth. A look may leave another reference
	// byte.
	table[evictReference] = func(x *execution) {
		t := x.t()
		c := x.candidate(uint8(t.v) - 1)
		x.accesses++ // its cost; of planned, nothing
		if x.y.refers {
			x.accesses--
			c.Reference = uint8(x.load(referenceOf(t.s)))
		}
		worth := x.y.rule.Worth(c, uint64(t.number), policy.Spread(t.spread))
		if worth < policy.Kept && (t.best == 0 || worth < t.worth) {
			t.best, t.worth, t.cost = uint8(t.v)+8*t.s, worth, uint8(c.Cost)
		}
		t.v, t.pc = 0, evictHand
		if t.refer = x.y.rule.Looked(c.Reference, uint64(t.number)); worth > 0 && t.refer != c.Reference {
			t.pc = evictRefer
			return
		}
		if t.refer = 0; worth == 0 {
			t.tries = uint8(x.y.rule.Looks())
		}
	}
	table[evictRefer] = func(x *execution) {
		t := x.t()
		x.store(referenceOf(t.s), value(t.refer))
		t.refer, t.pc = 0, evictHand
	}
	// The victim may have changed since the look: it must be READY and name its slot.
	table[evictAgain] = func(x *execution) {
		t := x.t()
		u := x.load(wordOf(t.best%8 - 1))
		t.v, t.s, t.f, t.pc = value(t.best%8), t.best/8, u, evictIntent
		t.best, t.worth, t.cost = 0, 0, 0
		if stateOf(u) == ready && (placeOf(u) == t.s+1 || x.broken(ChoiceUnchecked)) {
			return
		}
		if t.v, t.f = 0, 0; t.searches+1 == searches {
			t.result, t.pc = Full, abortWord
			return
		}
		t.searches++
		x.search()
	}
	table[evictIntent] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().entry), value(x.t().s)+1)
		x.t().pc = evictList
		if x.broken(VictimUnlisted) || x.broken(VictimListedLate) {
			x.toRetire()
		}
	}
	table[evictList] = func(x *execution) {
		t := x.t()
		x.store(victimOf(x.record(), t.entry), t.v)
		x.pass("evict.listed")
		if x.broken(VictimListedLate) {
			t.pc = evictMove
			return
		}
		x.toRetire()
	}
	table[evictRetire] = func(x *execution) {
		t := x.t()
		u := x.y.packWord(retiring, x.owner(), generationOf(t.f)+1, placeOf(t.f))
		if x.broken(VictimEmptiedFirst) {
			u = x.y.packWord(empty, 0, generationOf(t.f)+1, 0)
		}
		if !x.cas(wordOf(uint8(t.v)-1), t.f, u) {
			t.v, t.f, t.pc = 0, 0, evictUnlist
			return
		}
		x.pass("evict.retired")
		t.f, t.pc = 0, evictMove
		switch {
		case x.broken(VictimEmptiedFirst):
		case x.broken(SlotMovedFirst):
			t.victim, t.pc = u, evictEmpty
		case x.broken(VictimListedLate):
			t.victim, t.pc = u, evictList
		default:
			t.victim = u
		}
	}
	// No other client changes the entry: the victim is RETIRING by us.
	table[evictMove] = func(x *execution) {
		t := x.t()
		if !x.cas(tableOf(t.s), t.v, value(x.op().Sample)+1) {
			x.fail("slot %d was given to another sample while its own was evicted", t.s)
			return
		}
		x.pass("evict.moved")
		t.holds, t.pc = true, evictEmpty
		switch {
		case x.broken(SlotMovedFirst):
			t.pc = evictRetire
		case x.broken(VictimEmptiedFirst), x.broken(VictimUnlistedEarly):
			t.pc = evictUnlist
		}
	}
	table[evictEmpty] = func(x *execution) {
		t := x.t()
		if !x.cas(wordOf(uint8(t.v)-1), t.victim, x.y.packWord(empty, 0, generationOf(t.victim)+1, 0)) {
			x.fail("the word of sample %d was changed while it was evicted", t.v-1)
			return
		}
		x.pass("evict.emptied")
		t.victim, t.v, t.pc = 0, 0, evictUnlist
		if x.broken(VictimUnlistedEarly) {
			t.pc = slotName
		}
	}
	table[evictUnlist] = func(x *execution) {
		t := x.t()
		x.store(victimOf(x.record(), t.entry), 0)
		x.pass("evict.unlisted")
		switch {
		case x.broken(VictimUnlistedEarly) && t.v != 0:
			t.pc = evictEmpty
		case t.holds:
			t.v, t.pc = 0, slotName
		case t.searches+1 == searches:
			t.result, t.pc = Full, abortWord
		default: // another client has changed the victim
			t.searches++
			x.search()
		}
	}

	// Reclaim: the victim of a dead client's entry. Its slot is its own until the entry of the slot
	// table has moved: then it is READY again, else EMPTY.
	table[takeVictim] = func(x *execution) {
		t := x.t()
		v := x.load(victimOf(t.rec, t.j))
		if v == 0 || x.broken(VictimKept) {
			t.pc = takeWordLoad
			return
		}
		t.f, t.pc = v, takeVictimLoad
	}
	table[takeVictimLoad] = func(x *execution) {
		t := x.t()
		w := x.load(wordOf(uint8(t.f) - 1))
		if stateOf(w) != retiring || ownerOf(w) != t.rec+1 {
			t.f, t.pc = 0, takeWordLoad
			return
		}
		t.w, t.pc = w, takeVictimTable
		t.keep = x.broken(VictimRestored)
		if x.broken(VictimRestored) || x.broken(VictimDropped) {
			t.pc = takeVictimWord
		}
	}
	table[takeVictimTable] = func(x *execution) {
		t := x.t()
		t.keep, t.pc = x.load(tableOf(placeOf(t.w)-1)) == t.f, takeVictimWord
	}
	table[takeVictimWord] = func(x *execution) {
		t := x.t()
		to := x.y.packWord(empty, 0, generationOf(t.w)+1, 0)
		if t.keep {
			to = x.y.packWord(ready, 0, generationOf(t.w), placeOf(t.w))
		}
		if x.cas(wordOf(uint8(t.f)-1), t.w, to) {
			x.pass("reclaim.victim")
		}
		t.w, t.f, t.keep, t.pc = 0, 0, false, takeWordLoad
	}
	table[takeVictimClear] = func(x *execution) {
		x.store(victimOf(x.t().rec, x.t().j), 0)
		x.t().pc = takeEntryClear
	}
}

// candidate is what a search knows of a sample, without its reference byte.
func (x *execution) candidate(sample uint8) policy.Candidate {
	return policy.Candidate{Sample: uint64(sample), Size: 1, Cost: policy.Cost(x.s.costs[sample]), Next: x.y.Next[sample]}
}

// search begins a search for a victim. With the policy cost it loads the spread.
func (x *execution) search() {
	t := x.t()
	if t.tries, t.pc = 0, evictHand; x.y.Policy.NeedsCosts() {
		t.pc = evictSpread
	}
}

// yields says whether the best victim of a search goes for the sample of this set.
func (x *execution) yields() bool {
	t := x.t()
	newcomer, victim := x.candidate(x.op().Sample), x.candidate(t.best%8-1)
	victim.Cost = policy.Cost(t.cost)
	return x.y.rule.Yields(newcomer, victim, policy.Spread(t.spread))
}

// toRetire goes to the victim's word, or where a broken protocol goes.
func (x *execution) toRetire() {
	x.t().pc = evictRetire
	if x.broken(SlotMovedFirst) {
		x.t().pc = evictMove
	}
}
