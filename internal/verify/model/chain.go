package model

// The steps of docs/spec/arena-eviction.md: samples that take several slots, in a chain of the slot
// table. What they share with caches of one slot a sample lies in set.go, evict.go and reclaim.go.

const maxVictims = 3 // for one set; 2n + 16 in the real code

func packSlot(sample, next uint8) value { return value(sample) | value(next)<<3 }
func holderOf(e value) uint8            { return uint8(e & 7) }
func nextOf(e value) uint8              { return uint8(e >> 3) }

// An intent: the slot to take or to free, and the head of the rest of the chain; each + 1.
func packPair(candidate, rest uint8) value   { return value(candidate) | value(rest)<<4 }
func pairOf(t value) (candidate, rest uint8) { return uint8(t & 15), uint8(t >> 4) }

// groupSlots is the number of slots that share a free_from; 512 in the real code.
func (y *system) groupSlots() uint8 {
	if y.OneGroup {
		return maxPlaces
	}
	return 2
}

func cursorOf(group uint8) addr { return freeFromAddr + addr(group) }

func (y *system) groups() uint8 { return (y.Places + y.groupSlots() - 1) / y.groupSlots() }

// end is the end of a group, counted from its start.
func (y *system) end(g uint8) uint8 { return min(y.groupSlots(), y.Places-g*y.groupSlots()) }

func init() {
	// Step 5. An overwrite counts the slots that it has. No other client changes them, so the walk is one
	// step.
	table[chainCount] = func(x *execution) {
		t := x.t()
		n := uint8(0)
		for s := placeOf(t.w); s != 0 && n <= x.y.Places; n++ {
			s = nextOf(x.load(tableOf(s - 1)))
		}
		x.accesses = 1
		switch {
		case n == x.op().units():
			t.head, t.n = placeOf(t.w), n
			t.s, t.holds = t.head-1, true
			x.placed()
		case x.broken(OverwriteForgets):
			x.toChain()
		default:
			x.free(x.op().Sample+1, placeOf(t.w), t.entry, backTake)
		}
	}
	// Search for a free slot, group by group.
	table[chainGroup] = func(x *execution) {
		t := x.t()
		if t.r == x.y.groups() {
			t.r, t.pc = 0, evictHand
			t.full, t.tries = true, 0
			if t.victims == maxVictims && !x.y.OneGroup {
				x.giveUp(Full)
			}
			return
		}
		t.f = x.load(cursorOf(t.r))
		t.s = t.r*x.y.groupSlots() + fromOf(t.f)
		t.pc = chainScan
		if fromOf(t.f) == x.y.end(t.r) {
			t.r, t.f, t.s, t.pc = t.r+1, 0, 0, chainGroup
		}
	}
	table[chainScan] = func(x *execution) {
		t := x.t()
		if x.load(tableOf(t.s)) == 0 {
			t.pc = chainIntent
			if x.broken(ChainIntentLate) {
				t.pc = chainTake
			}
			return
		}
		x.chainOn()
	}
	table[chainPass] = func(x *execution) {
		t := x.t()
		x.cas(cursorOf(t.r), t.f, packFree(seqOf(t.f), x.y.end(t.r)))
		t.r, t.f, t.s, t.pc = t.r+1, 0, 0, chainGroup
	}
	table[chainIntent] = func(x *execution) {
		t := x.t()
		rest := t.head
		if x.broken(RestForgotten) {
			rest = 0
		}
		x.store(intentOf(x.record(), t.entry), packPair(t.s+1, rest))
		x.pass("slot.intent")
		t.pc = chainTake
		if x.broken(ChainIntentLate) {
			t.pc = chainMove
		}
	}
	table[chainTake] = func(x *execution) {
		t := x.t()
		if !x.cas(tableOf(t.s), 0, packSlot(x.op().Sample+1, t.head)) {
			if t.full {
				t.pc = evictHand
				return
			}
			x.chainOn()
			return
		}
		x.pass("slot.taken")
		t.head, t.n, t.pc = t.s+1, t.n+1, chainMove
		switch {
		case x.broken(ChainIntentLate):
			t.pc = chainIntent
		case t.full: // the hand has found it: the slots below may be free
			x.chainNext()
		}
	}
	table[chainMove] = func(x *execution) {
		t := x.t()
		if t.full {
			x.chainNext()
			return
		}
		x.cas(cursorOf(t.r), t.f, packFree(seqOf(t.f), t.s%x.y.groupSlots()+1))
		x.chainNext()
	}
	table[chainName] = func(x *execution) {
		t, i := x.t(), x.op().Sample
		w := x.y.packWord(writing, x.owner(), generationOf(t.w), t.head)
		if !x.cas(wordOf(i), t.w, w) {
			x.fail("a fill of sample %d finds its word changed before it could name its place, so the claim was "+
				"lost", i)
			return
		}
		x.pass("slot.named")
		t.w, t.s, t.holds = w, t.head-1, true
		x.placed()
	}

	// Evict: claim the victim with another entry, free its chain, empty it.
	table[removeLook] = func(x *execution) {
		t := x.t()
		if stateOf(x.load(wordOf(uint8(t.v)-1))) != ready {
			t.v, t.pc = 0, evictHand
			return
		}
		t.k, t.pc = 0, removeList
		if x.broken(RemovedUnlisted) {
			t.pc = removeLoad
		}
	}
	table[removeList] = func(x *execution) {
		t := x.t()
		if !x.cas(entryOf(x.record(), t.k), 0, t.v) {
			if t.k++; t.k == x.y.Entries {
				t.k, t.v = 0, 0
				x.giveUp(Busy)
			}
			return
		}
		x.pass("evict.listed")
		t.pc = removeLoad
	}
	table[removeLoad] = func(x *execution) {
		t := x.t()
		u := x.load(wordOf(uint8(t.v) - 1))
		if stateOf(u) != ready {
			t.v, t.pc = 0, removeUnlist
			return
		}
		t.f, t.pc = u, removeClaim
		if x.broken(VictimFreedFirst) {
			t.victim, t.f = u, 0
			x.free(uint8(t.v), placeOf(u), t.k, backEvict)
		}
	}
	table[removeClaim] = func(x *execution) {
		t := x.t()
		u := x.y.packWord(writing, x.owner(), generationOf(t.f)+1, placeOf(t.f))
		if x.broken(VictimEmptyFirst) {
			u = x.y.packWord(empty, 0, generationOf(t.f)+1, 0)
		}
		if !x.cas(wordOf(uint8(t.v)-1), t.f, u) {
			t.v, t.f, t.pc = 0, 0, removeUnlist
			return
		}
		x.pass("evict.retired")
		place := placeOf(t.f)
		t.victim, t.f = u, 0
		if x.broken(VictimEmptyFirst) {
			t.victim = 0
		}
		x.free(uint8(t.v), place, t.k, backEvict)
	}
	table[removeEmpty] = func(x *execution) {
		t := x.t()
		if !x.cas(wordOf(uint8(t.v)-1), t.victim, x.y.packWord(empty, 0, generationOf(t.victim)+1, 0)) {
			x.fail("the word of sample %d was changed while it was removed", t.v-1)
			return
		}
		x.pass("evict.emptied")
		t.victim, t.pc = 0, removeIntent
		if x.broken(RemovedUnlisted) {
			x.removed()
		}
	}
	table[removeIntent] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().k), 0)
		x.t().pc = removeUnlist
	}
	table[removeUnlist] = func(x *execution) {
		t := x.t()
		x.store(entryOf(x.record(), t.k), 0)
		x.pass("evict.unlisted")
		if t.v != 0 {
			x.removed()
			return
		}
		// another client has changed the victim
		if t.k, t.tries, t.pc = 0, 0, evictHand; t.searches+1 == searches {
			x.giveUp(Full)
			return
		}
		t.searches++
	}

	// Free a chain, slot by slot. The intent has the rest before the slot is free.
	table[freeLoad] = func(x *execution) {
		t := x.t()
		if t.at == 0 {
			x.freed()
			return
		}
		e := x.load(tableOf(t.at - 1))
		if t.first && x.broken(CandidateUnchecked) && e != 0 {
			t.of = holderOf(e)
		}
		switch {
		case holderOf(e) == t.of:
			t.rest, t.pc = nextOf(e), freeIntent
			if x.broken(FreedUnnoted) {
				t.pc = freeSlot
			}
		case t.first && !x.broken(CandidateCursor): // it may have been freed by a client that died at once
			t.pc = freeCursorLoad
		case t.first:
			t.at, t.rest = t.rest, 0
		default:
			x.freed()
		}
		t.first = false
	}
	table[freeIntent] = func(x *execution) {
		t := x.t()
		x.store(intentOf(x.freer(), t.note), packPair(t.at, t.rest))
		t.pc = freeSlot
	}
	table[freeSlot] = func(x *execution) {
		t := x.t()
		if x.cas(tableOf(t.at-1), packSlot(t.of, t.rest), 0) {
			x.pass(t.back.prefix() + ".slot")
		}
		t.pc = freeCursorLoad
	}
	table[freeCursorLoad] = func(x *execution) {
		x.t().f = x.load(cursorOf((x.t().at - 1) / x.y.groupSlots()))
		x.t().pc = freeCursor
	}
	table[freeCursor] = func(x *execution) {
		t := x.t()
		f, group, at := t.f, (t.at-1)/x.y.groupSlots(), (t.at-1)%x.y.groupSlots()
		t.f, t.pc = 0, freeCursorLoad
		if x.cas(cursorOf(group), f, packFree(seqOf(f)+1, min(fromOf(f), at))) {
			x.pass(t.back.prefix() + ".cursor")
			t.at, t.rest, t.pc = t.rest, 0, freeLoad
			if x.broken(ChainHeadOnly) && t.back >= backIntent {
				x.freed()
			}
		}
	}
}

// chainCell is the k-th word of the payload of a sample that this thread fills. The head of a chain has
// the last bytes.
func (x *execution) chainCell(head uint8, units, k int) addr {
	for left := units - 1 - k/2; left > 0 && head != 0; left-- {
		head = nextOf(x.s.mem[tableOf(head-1)])
	}
	if head == 0 {
		x.fail("a fill writes to a chain that has too few slots")
		head = 1
	}
	return cellAddr + addr(2*int(head-1)+k%2)
}

// toChain begins the search for the slots of a claimed sample that has none.
func (x *execution) toChain() {
	t := x.t()
	t.head, t.n, t.r, t.full, t.pc = 0, 0, 0, false, chainGroup
}

// chainOn goes to the next slot of a group.
func (x *execution) chainOn() {
	t := x.t()
	t.pc = chainScan
	if t.s++; t.s-t.r*x.y.groupSlots() == x.y.end(t.r) {
		t.pc = chainPass
	}
}

// chainNext goes on after a slot was taken.
func (x *execution) chainNext() {
	t := x.t()
	t.f, t.s, t.full, t.pc = 0, 0, false, chainGroup
	if t.n == x.op().units() {
		t.r, t.pc = 0, chainName
	}
}

// removed goes on after an eviction: it searches again.
func (x *execution) removed() {
	t := x.t()
	t.v, t.k, t.tries, t.searches = 0, 0, 0, 0
	t.victims++
	t.r, t.full, t.pc = 0, false, chainGroup
}

// giveUp aborts a claim that gets no place.
func (x *execution) giveUp(r Result) {
	t := x.t()
	t.result, t.full = r, false
	x.free(x.op().Sample+1, t.head, t.entry, backAbort)
}

// free frees the chain from a slot + 1 of a sample + 1. The claim entry notes what is left.
func (x *execution) free(sample, head, entry uint8, back back) {
	t := x.t()
	t.of, t.at, t.rest, t.note, t.back, t.first, t.pc = sample, head, 0, entry, back, false, freeLoad
	t.holds = false
}

// freer is the record whose claim entry notes what is left: this client's own or a dead one's.
func (x *execution) freer() uint8 {
	if x.t().back >= backIntent {
		return x.t().rec
	}
	return x.record()
}

// freed goes on after a chain.
func (x *execution) freed() {
	t := x.t()
	b := t.back
	t.of, t.at, t.rest, t.note, t.back, t.first = 0, 0, 0, 0, 0, false
	switch b {
	case backAbort:
		t.head, t.n, t.pc = 0, 0, abortWord
	case backTake:
		x.toChain()
	case backEvict:
		if t.pc = removeEmpty; x.broken(VictimEmptyFirst) {
			t.pc = removeIntent
		}
	case backIntent:
		t.pc = takeIntents
	case backWord:
		t.pc = takeWord
	}
}

// back is what follows when a chain is free.
type back uint8

const (
	backAbort  back = iota + 1
	backTake        // an overwrite needs another number of slots
	backEvict       // the chain was a victim's
	backIntent      // a reclaim of what an intent names
	backWord        // a reclaim of what the word names
)

func (b back) prefix() string {
	if b >= backIntent {
		return "reclaim"
	}
	return "abort"
}
