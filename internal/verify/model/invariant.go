package model

import (
	"fmt"
	"slices"
)

// check returns the violated invariant of a state; "": none. These invariants hold in every state,
// between any two steps.
func (s *State) check(y *system) string {
	for i := range y.Samples {
		w := s.mem[wordOf(i)]
		if stateOf(w) != ready {
			continue
		}
		place, units := placeOf(w)-1, y.units(s.mem[metaOf(i)])
		if y.Chains {
			if v := s.checkChain(y, i); v != "" {
				return v
			}
			continue
		}
		if sum := s.sum(y, i); sum != s.shown[i] {
			return fmt.Sprintf("sample %d is READY with the checksum of v%d, and v%d was published", i, sum, s.shown[i])
		}
		for k := range 2 * int(units) {
			if b := s.mem[cellAddr+addr(2*int(place)+k)]; b != value(s.shown[i]) {
				return fmt.Sprintf("sample %d is READY with bytes of v%d, and v%d was published: an unfinished "+
					"fill, or another's", i, b, s.shown[i])
			}
		}
		if y.table() && s.mem[phaseAddr]&3 == 0 && s.mem[tableOf(place)] != value(i)+1 {
			return fmt.Sprintf("sample %d is READY in slot %d, which the slot table does not give to it", i, place)
		}
	}
	for t := range y.threads {
		th := &s.threads[t]
		if !th.claimed {
			continue
		}
		i := y.threads[t].program[th.op].Sample
		if w := s.mem[wordOf(i)]; w != th.w {
			return fmt.Sprintf("thread %d of a living client holds the claim of sample %d, whose word was changed "+
				"by another: %s", t, i, wordOf(i).show(w, y.Config))
		}
		if th.victim != 0 {
			if w := s.mem[wordOf(uint8(th.v)-1)]; w != th.victim {
				return fmt.Sprintf("thread %d of a living client evicts sample %d, whose word was changed by "+
					"another: %s", t, th.v-1, wordOf(uint8(th.v)-1).show(w, y.Config))
			}
		}
		if th.head != 0 && th.of != i+1 {
			if slots, own := s.chain(th.head, i); !own || len(slots) != int(th.n) {
				return fmt.Sprintf("thread %d of a living client fills the %d slots from %d on with sample %d, and the "+
					"slot table does not give them to it", t, th.n, th.head-1, i)
			}
		}
		if th.holds && y.table() && !y.Chains && s.mem[tableOf(th.s)] != value(i)+1 {
			return fmt.Sprintf("thread %d of a living client fills slot %d with sample %d, and the slot table does "+
				"not give it to it", t, th.s, i)
		}
	}
	if y.arena() {
		return s.checkExtents(y)
	}
	return ""
}

// checkChain checks a READY sample that lies in a chain of slots.
func (s *State) checkChain(y *system, i uint8) string {
	if sum := s.sum(y, i); sum != s.shown[i] {
		return fmt.Sprintf("sample %d is READY with the checksum of v%d, and v%d was published", i, sum, s.shown[i])
	}
	slots, own := s.chain(placeOf(s.mem[wordOf(i)]), i)
	if s.mem[phaseAddr]&3 == 0 && (!own || len(slots) != int(y.units(s.mem[metaOf(i)]))) {
		return fmt.Sprintf("sample %d is READY with %d slots, which the slot table does not give to it", i,
			y.units(s.mem[metaOf(i)]))
	}
	for _, p := range slots {
		for k := range 2 {
			if b := s.mem[cellAddr+addr(2*int(p-1)+k)]; b != value(s.shown[i]) {
				return fmt.Sprintf("sample %d is READY with bytes of v%d, and v%d was published: an unfinished "+
					"fill, or another's", i, b, s.shown[i])
			}
		}
	}
	return ""
}

// sum returns the value whose checksum a sample has.
func (s *State) sum(y *system, sample uint8) uint8 {
	if y.Variable {
		return uint8(s.mem[checksumOf(sample)])
	}
	return contentOf(s.mem[metaOf(sample)])
}

// checkExtents checks that no unit belongs to two samples: READY, in a fill, or EMPTY with an
// extent for the next fill. Nor may it belong to a sample and to an allocation that is not named
// yet.
func (s *State) checkExtents(y *system) string {
	var of [maxPlaces + maxUnits]uint8
	take := func(i, unit, units uint8) string {
		for u := unit; u < min(unit+units, uint8(len(of))); u++ {
			if of[u] != 0 && of[u] != i+1 {
				return fmt.Sprintf("unit %d belongs to samples %d and %d", u, of[u]-1, i)
			}
			of[u] = i + 1
		}
		return ""
	}
	for i := range y.Samples {
		if p := placeOf(s.mem[wordOf(i)]); p != 0 {
			if v := take(i, p-1, max(1, y.units(s.mem[metaOf(i)]))); v != "" {
				return v
			}
		}
	}
	for t := range y.threads {
		if th := &s.threads[t]; th.holds {
			op := &y.threads[t].program[th.op]
			if v := take(op.Sample, th.s, op.units()); v != "" {
				return v
			}
		}
	}
	return ""
}

// checkRest checks a state in which no thread can move: every thread has finished or waits.
func (s *State) checkRest(y *system) string {
	for t := range y.threads {
		if t != y.janitor() && s.enabled(y, t) {
			return fmt.Sprintf("thread %d waits forever", t)
		}
	}
	for c := range y.Clients {
		if s.clients[c].dead || s.clients[c].record == 0 {
			continue
		}
		r := s.clients[c].record - 1
		for k := range y.Entries {
			if v := s.mem[entryOf(r, k)]; v != 0 {
				return fmt.Sprintf("client %d is idle and still lists a claim of sample %d", c, v-1)
			}
		}
		for i := range y.Samples {
			if w := s.mem[wordOf(i)]; ownerOf(w) == r+1 {
				return fmt.Sprintf("client %d is idle and sample %d is still %s", c, i, wordOf(i).show(w, y.Config))
			}
		}
		if p := s.mem[phaseAddr]; p&3 != 0 && ownerOf(p) == r+1 {
			return fmt.Sprintf("client %d is idle and the phase is still CLEARING by it", c)
		}
	}
	return ""
}

// checkRecovery kills all remaining clients at once. Then the next client registers, recovers, sets
// every sample, clears, and sets every sample again. It returns what is wrong then. trace, if not
// nil, receives the steps.
func (s *State) checkRecovery(y *system, trace func(*execution)) string {
	j := y.janitor()
	n := *s
	for t := range y.threads {
		for n.threads[t].buffer[0].on {
			(&execution{y: y, s: &n, me: t}).flush()
		}
	}
	for c := range y.Clients {
		n.die(y, uint8(c))
	}
	n.clients[janitorClient] = client{}
	n.threads[j] = thread{pc: firstStep(y.threads[j].program)}
	var x execution
	for range 2000 {
		th := &n.threads[j]
		if th.pc == finished {
			break
		}
		op := y.threads[j].program[th.op]
		x = execution{y: y, s: &n, me: j, verbose: trace != nil}
		x.step()
		x.drain() // no other thread sees the order
		if trace != nil {
			trace(&x)
		}
		if x.violation != "" {
			return "afterwards, " + x.violation
		}
		if x.waits {
			return "afterwards, a client that is alone waits forever"
		}
		if !x.ended {
			continue
		}
		if v := n.check(y); v != "" {
			return "afterwards, " + v
		}
		switch op.Kind {
		case Recover: // Register came before: both together leave no claim of a dead client
			if v := n.checkRecovered(y); v != "" {
				return v
			}
		case Set:
			if v := n.checkSet(y, op, x.result); v != "" {
				return v
			}
		case Clear, Register:
			if x.result != Done {
				return fmt.Sprintf("afterwards, a client that is alone gets %s from operation %d", x.result, op.Kind)
			}
		}
	}
	if n.threads[j].pc != finished {
		return "afterwards, a client that is alone never finishes"
	}
	if p := n.mem[phaseAddr]; p&3 != 0 {
		return "afterwards, the phase stays CLEARING"
	}
	return ""
}

// checkRecovered checks that no claim, listed or in a word, outlives its owner. Only a READY sample
// may hold a slot, and the search for a free slot must find all others.
func (s *State) checkRecovered(y *system) string {
	for r := range y.Records {
		for k := range y.Entries {
			if v := s.mem[entryOf(r, k)]; v != 0 {
				return fmt.Sprintf("afterwards, record %d still lists sample %d", r, v-1)
			}
			if v := s.mem[victimOf(r, k)]; v != 0 {
				return fmt.Sprintf("afterwards, record %d still lists sample %d as a victim", r, v-1)
			}
		}
	}
	for i := range y.Samples {
		if w := s.mem[wordOf(i)]; ownerOf(w) != 0 {
			return fmt.Sprintf("afterwards, sample %d stays %s", i, wordOf(i).show(w, y.Config))
		}
	}
	if !y.table() || s.mem[phaseAddr]&3 != 0 { // the next set finishes half a clear
		return ""
	}
	for p := range y.Places {
		if y.Chains {
			if v := s.checkSlot(y, p); v != "" {
				return v
			}
			continue
		}
		switch v := s.mem[tableOf(p)]; {
		case v == 0 && p < fromOf(s.mem[freeFromAddr]):
			return fmt.Sprintf("afterwards, slot %d is free and free_from is past it: it is lost", p)
		case v != 0 && s.mem[wordOf(uint8(v)-1)]>>11 != value(p)+1:
			return fmt.Sprintf("afterwards, slot %d is given to sample %d, which does not name it: it is lost", p, v-1)
		}
	}
	return ""
}

// checkSlot checks a slot of a chain after a recovery.
func (s *State) checkSlot(y *system, p uint8) string {
	i := holderOf(s.mem[tableOf(p)])
	if i == 0 {
		if p%y.groupSlots() < fromOf(s.mem[cursorOf(p/y.groupSlots())]) {
			return fmt.Sprintf("afterwards, slot %d is free and free_from is past it: it is lost", p)
		}
		return ""
	}
	slots, own := s.chain(placeOf(s.mem[wordOf(i-1)]), i-1)
	if !own || !slices.Contains(slots, p+1) {
		return fmt.Sprintf("afterwards, slot %d is given to sample %d, which does not name it: it is lost", p, i-1)
	}
	return ""
}

// checkSet checks that a set into a cache with a free slot stores, so that no slot is lost. (An
// arena may lose an extent, but only until the next clear.)
func (s *State) checkSet(y *system, op Op, got Result) string {
	n := uint8(0)
	for i := range y.Samples {
		if stateOf(s.mem[wordOf(i)]) == ready {
			n++
		}
	}
	switch {
	case got == Stored || got == Exists && op.Value < firstAgain:
		return ""
	case got == Full && y.arena() && op.Value < firstAgain:
		return ""
	case got == Full && n >= y.Places && (!y.Evicts || y.refuses()):
		return ""
	}
	return fmt.Sprintf("afterwards, a set of sample %d by a client that is alone gives %s with %d of %d places in "+
		"use: one is lost", op.Sample, got, n, y.Places)
}
