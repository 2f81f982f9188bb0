package model

import "github.com/stocached/stocached/policy"

func init() {
	// Step 1: load the word, and check for free capacity.
	table[setLoad] = func(x *execution) {
		t, i := x.t(), x.op().Sample
		*t = thread{pc: t.pc, op: t.op, buffer: t.buffer} // a set that starts again keeps no registers
		w := x.load(wordOf(i))
		switch {
		case stateOf(w) == ready && !x.op().Overwrite:
			x.finish(Exists)
			return
		case ownerOf(w) != 0 && ownerOf(w) == x.owner():
			x.finish(Busy)
			return
		case ownerOf(w) != 0: // WRITING, or RETIRING
			t.rec, t.why, t.pc = ownerOf(w)-1, forSet, lockTry
			return
		}
		t.w = w
		switch {
		case x.y.Indices:
			t.s, t.keep = i, true
			x.toEntry()
		case x.y.Chains:
			x.toEntry()
		case placeOf(w) == 0:
			t.pc = setRoom
		case x.y.Variable:
			t.pc = setMeta
		default:
			t.keep = true
			x.toEntry()
		}
	}
	table[setMeta] = func(x *execution) {
		t := x.t()
		t.meta = x.load(metaOf(x.op().Sample))
		t.keep = contentOf(t.meta) >= x.op().units()
		if t.keep {
			x.toEntry()
		} else {
			t.pc = setRoom
		}
	}
	table[setRoom] = func(x *execution) {
		room := false
		if x.y.Variable {
			room = nextUnit(x.load(arenaNextAddr))+x.op().units() <= x.y.Places
		} else {
			room = fromOf(x.load(freeFromAddr)) < x.y.Places
		}
		switch {
		case room:
			x.toEntry()
		case x.y.Evicts:
			x.t().full = true
			x.toEntry()
		case x.broken(FullUnasked):
			x.finish(Full)
		default:
			x.t().pc = setFull
		}
	}
	// A half-done clear looks full as well, so FULL needs an open cache.
	table[setFull] = func(x *execution) {
		if stateOf(x.load(phaseAddr)) == 0 {
			x.finish(Full)
			return
		}
		x.toEntry()
	}

	// Steps 2 and 3: list the claim, then load the phase.
	table[setEntry] = func(x *execution) {
		t, a := x.t(), entryOf(x.record(), x.t().entry)
		i := value(x.op().Sample) + 1
		listed := false
		if x.broken(EntryPlainStore) { // the load before does not order
			if listed = x.load(a) == 0; listed {
				x.accesses = 0
				x.store(a, i)
			}
		} else {
			listed = x.cas(a, 0, i)
		}
		if !listed {
			if t.entry++; x.y.Last {
				t.entry -= 2
			}
			if t.entry >= x.y.Entries {
				x.finish(Busy)
			}
			return
		}
		x.pass("claim.entry")
		switch {
		case x.broken(EntryAfterClaim):
			x.toPlace()
		case x.broken(PhaseBeforeEntry):
			t.pc = setWord
		default:
			t.pc = setPhase
		}
	}
	table[setPhase] = func(x *execution) {
		t := x.t()
		t.p = x.load(phaseAddr)
		x.pass("claim.phase")
		switch {
		case stateOf(t.p) != 0 && (x.broken(EntryAfterClaim) || x.broken(PhaseBeforeEntry)):
			x.finish(Busy)
		case stateOf(t.p) != 0:
			t.pc = setWithdraw
		case x.broken(PhaseBeforeEntry):
			t.pc = setEntry
		default:
			t.pc = setWord
		}
	}
	table[setWithdraw] = func(x *execution) {
		t := x.t()
		x.store(entryOf(x.record(), t.entry), 0)
		switch o := ownerOf(t.p); {
		case o == x.owner():
			x.finish(Busy)
		case o == 0:
			t.again, t.pc = forSetPhase, phaseTakeFree
		default:
			t.rec, t.why, t.again, t.pc = o-1, forSetPhase, forSetPhase, lockTry
		}
	}

	// Step 4: claim.
	table[setWord] = func(x *execution) {
		t, i := x.t(), x.op().Sample
		g, place := generationOf(t.w), uint8(0)
		if stateOf(t.w) == ready && !x.broken(NoGenerationOnOverwrite) {
			g++
		}
		if t.keep || x.y.Chains || x.broken(ExtentKeptTooLong) {
			place = placeOf(t.w)
		}
		if x.y.Indices {
			place = i + 1
		}
		w := x.y.packWord(writing, x.owner(), g, place)
		if !x.cas(wordOf(i), t.w, w) {
			if x.broken(EntryAfterClaim) {
				x.finish(Busy)
				return
			}
			t.pc = setLost
			return
		}
		x.pass("claim.word")
		t.w, t.claimed = w, true
		switch {
		case t.keep && x.y.Variable && !x.broken(KeptUnchecked):
			t.pc = setKept
			return
		case t.keep:
			t.s, t.holds = place-1, true
		}
		if x.broken(EntryAfterClaim) {
			t.pc = setEntry
			return
		}
		if x.op().Took > 0 {
			t.pc = costLoad
			return
		}
		x.toPlace()
	}
	// What the load took counts before a slot is looked for. Another client may store another spread in between:
	// then one of the two is lost.
	table[costLoad] = func(x *execution) {
		x.accesses++
		x.t().spread, x.t().pc = x.s.spread, costSpread
	}
	table[costSpread] = func(x *execution) {
		t, c := x.t(), x.client()
		c.draws++
		x.accesses++
		cost, spread := policy.Cost(x.s.costs[x.op().Sample]).Loaded(uint64(x.op().Took), policy.Spread(t.spread),
			policy.Random(x.y.seed, uint64(c.draws)))
		x.s.spread = uint64(spread)
		x.say("store spread = %#x", x.s.spread)
		t.spread, t.cost, t.pc = 0, uint8(cost), costMeta
	}
	table[costMeta] = func(x *execution) {
		t := x.t()
		x.accesses++
		x.s.costs[x.op().Sample] = t.cost
		x.say("store cost[%d] = %d", x.op().Sample, t.cost)
		t.cost = 0
		x.toPlace()
	}
	// An extent is kept because of the length that was read beside its word. After that the word
	// may have come back with another length.
	table[setKept] = func(x *execution) {
		t := x.t()
		if x.load(metaOf(x.op().Sample)) != t.meta {
			t.result, t.pc = Busy, abortWord
			return
		}
		t.s, t.holds = placeOf(t.w)-1, true
		x.toPlace()
	}
	table[setLost] = func(x *execution) {
		x.store(entryOf(x.record(), x.t().entry), 0)
		x.t().pc = setLostLoad
	}
	table[setLostLoad] = func(x *execution) {
		if stateOf(x.load(wordOf(x.op().Sample))) == ready {
			x.t().pc = setLoad
			return
		}
		x.finish(Busy)
	}

	// Step 5, first-come: take a slot. The allocation names its sample.
	table[slotLoad] = func(x *execution) {
		t := x.t()
		t.f = x.load(freeFromAddr)
		t.s = fromOf(t.f)
		x.scanOn()
	}
	table[slotScan] = func(x *execution) {
		t := x.t()
		if x.load(tableOf(t.s)) != 0 {
			t.s++
			x.scanOn()
			return
		}
		t.pc = slotIntent
		if x.broken(NoIntent) || x.broken(IntentAfterSlot) {
			t.pc = slotTake
		}
	}
	table[slotIntent] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().entry), value(x.t().s)+1)
		x.pass("slot.intent")
		x.t().pc = slotTake
		if x.broken(IntentAfterSlot) {
			x.t().pc = slotMove
		}
	}
	table[slotTake] = func(x *execution) {
		t := x.t()
		if !x.cas(tableOf(t.s), 0, value(x.op().Sample)+1) {
			if t.full {
				t.pc = evictHand
				return
			}
			t.s++
			x.scanOn()
			return
		}
		x.pass("slot.taken")
		t.holds, t.pc = true, slotMove
		if t.full { // the hand has found it: the slots below may be free
			t.pc = slotName
		}
		if x.broken(IntentAfterSlot) {
			t.pc = slotIntent
		}
	}
	table[slotMove] = func(x *execution) {
		t := x.t()
		x.cas(freeFromAddr, t.f, packFree(seqOf(t.f), t.s+1))
		t.pc = slotName
	}
	table[slotName] = func(x *execution) {
		x.name("slot.named")
	}
	// The policy's reference byte of a sample that has just got its slot.
	table[slotHand] = func(x *execution) {
		t := x.t()
		t.refer, t.pc = x.y.rule.Placed(uint64(x.load(handAddr))), slotReference
	}
	table[slotReference] = func(x *execution) {
		t := x.t()
		x.store(referenceOf(t.s), value(t.refer))
		t.refer = 0
		x.placed()
	}
	table[slotNone] = func(x *execution) {
		t := x.t()
		x.cas(freeFromAddr, t.f, packFree(seqOf(t.f), x.y.Places))
		t.result, t.pc = Full, abortWord
		if x.y.Evicts {
			t.full = true
			x.search()
		}
	}

	// Step 5, arena: an extent, one thread of a handle at a time.
	table[extentLoad] = func(x *execution) {
		t, c := x.t(), x.client()
		if !x.broken(ExtendTogether) {
			if c.extending != 0 && c.extending != uint8(x.me)+1 {
				x.waits = true
				return
			}
			c.extending = uint8(x.me) + 1
		}
		t.f = x.load(arenaNextAddr)
		t.s = nextUnit(t.f)
		t.pc = extentIntent
		if t.s+x.op().units() > x.y.Places {
			t.pc = extentNone
		}
	}
	table[extentNone] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().entry), 0)
		x.client().extending = 0
		x.t().result, x.t().pc = Full, abortWord
	}
	table[extentIntent] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().entry), packExtent(x.t().s, x.op().units()))
		x.pass("extent.intent")
		x.t().pc = extentTake
	}
	table[extentTake] = func(x *execution) {
		t := x.t()
		if !x.cas(arenaNextAddr, t.f, packNext(x.owner(), t.s+x.op().units())) {
			t.pc = extentLoad
			return
		}
		x.pass("extent.taken")
		t.holds, t.pc = true, extentMeta
	}
	table[extentMeta] = func(x *execution) {
		if x.broken(FillsForgotten) {
			x.store(metaOf(x.op().Sample), packMeta(x.op().units(), 0))
		} else {
			x.putMeta(x.op().Sample, x.op().units(), 0)
		}
		x.t().pc = extentName
	}
	table[extentName] = func(x *execution) {
		x.name("extent.named")
	}
	table[extentDone] = func(x *execution) {
		x.client().extending = 0
		x.placed()
	}

	// Steps 6 and 7: write and publish.
	table[writeHalf] = func(x *execution) {
		x.writePayload(0, x.t().s, x.op().units(), x.op().Value)
		x.pass("write.half")
		x.t().pc = writeDone
		if x.broken(PublishHalf) {
			x.written()
		}
	}
	table[writeDone] = func(x *execution) {
		x.writePayload(1, x.t().s, x.op().units(), x.op().Value)
		x.pass("write.done")
		x.written()
		switch {
		case x.broken(PublishHalf):
			x.t().pc = publishIntent
		case x.broken(MetaAfterWord), x.broken(SumAfterWord):
			x.t().pc = publishWord
		}
	}
	table[publishSum] = func(x *execution) {
		x.store(checksumOf(x.op().Sample), value(x.op().Value))
		x.t().pc = publishMeta
	}
	table[publishMeta] = func(x *execution) {
		content, n := x.op().units(), uint8(1)
		if !x.y.Variable {
			content = x.op().Value
		}
		if x.broken(FillsKept) {
			n = 0
		}
		x.putMeta(x.op().Sample, content, n)
		x.pass("publish.meta")
		x.t().pc = publishWord
		switch {
		case x.broken(EntryBeforePublish), x.broken(MetaAfterWord), x.broken(SumAfterWord):
			x.t().pc = publishIntent
		}
	}
	table[publishWord] = func(x *execution) {
		t, i := x.t(), x.op().Sample
		w := x.y.packWord(ready, 0, generationOf(t.w), placeOf(t.w))
		if x.broken(PublishByStore) {
			x.store(wordOf(i), w)
		} else if !x.cas(wordOf(i), t.w, w) {
			x.fail("a publish of sample %d finds its word changed, so the claim was lost", i)
			return
		}
		x.pass("publish.word")
		x.s.shown[i] = x.op().Value
		t.claimed, t.holds, t.w = false, false, 0
		switch {
		case x.broken(EntryBeforePublish):
			x.finish(Stored)
		case x.broken(MetaAfterWord):
			t.pc = publishMeta
		case x.broken(SumAfterWord):
			t.pc = publishSum
		case x.broken(PublishHalf):
			t.pc = writeDone
		default:
			t.pc = publishIntent
		}
	}
	table[publishIntent] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().entry), 0)
		x.t().pc = publishEntry
	}
	table[publishEntry] = func(x *execution) {
		x.store(entryOf(x.record(), x.t().entry), 0)
		x.pass("publish.entry")
		if x.broken(EntryBeforePublish) {
			x.t().pc = publishWord
			return
		}
		x.finish(Stored)
	}

	// Abort.
	table[abortSlot] = func(x *execution) {
		t := x.t()
		if x.cas(tableOf(t.s), value(x.op().Sample)+1, 0) {
			x.pass("abort.slot")
		}
		t.holds, t.pc = false, abortCursorLoad
		if x.broken(CursorFirst) {
			t.pc = abortWord
		}
	}
	table[abortCursorLoad] = func(x *execution) {
		x.t().f = x.load(freeFromAddr)
		x.t().pc = abortCursor
	}
	table[abortCursor] = func(x *execution) {
		t := x.t()
		if !x.moveCursor(t.s) {
			t.pc = abortCursorLoad
			return
		}
		x.pass("abort.cursor")
		t.pc = abortWord
		switch {
		case x.broken(CursorFirst):
			t.pc = abortSlot
		case x.broken(AbortWordFirst):
			t.pc = abortIntent
		}
	}
	table[abortWord] = func(x *execution) {
		t, i := x.t(), x.op().Sample
		place := uint8(0)
		if x.y.arena() {
			place = placeOf(t.w)
		}
		g := uint16(1)
		if x.broken(NoGenerationOnTakeback) {
			g = 0
		}
		if !x.cas(wordOf(i), t.w, x.y.packWord(empty, 0, generationOf(t.w)+g, place)) {
			x.fail("an abort of sample %d finds its word changed, so the claim was lost", i)
			return
		}
		x.pass("abort.word")
		held := t.holds
		t.claimed, t.holds, t.w, t.pc = false, false, 0, abortIntent
		if x.broken(AbortWordFirst) && held && !x.y.Variable {
			t.pc = abortSlot
		}
	}
	table[abortIntent] = func(x *execution) {
		x.store(intentOf(x.record(), x.t().entry), 0)
		x.t().pc = abortEntry
	}
	table[abortEntry] = func(x *execution) {
		x.store(entryOf(x.record(), x.t().entry), 0)
		x.pass("abort.entry")
		x.finish(x.t().result)
	}
}

// toEntry goes to step 2, or where a broken protocol goes.
func (x *execution) toEntry() {
	if x.t().pc = setEntry; x.y.Last {
		x.t().entry = x.y.Entries - 1
	}
	if x.broken(EntryAfterClaim) || x.broken(PhaseBeforeEntry) {
		x.t().pc = setPhase
	}
}

// toPlace goes to step 5, or to step 6 if the sample has a place.
func (x *execution) toPlace() {
	switch t := x.t(); {
	case t.holds:
		x.placed()
	case x.y.Chains && placeOf(t.w) != 0:
		t.pc = chainCount
	case x.y.Chains:
		x.toChain()
	case x.y.Variable:
		t.pc = extentLoad
	case t.full:
		x.search()
	default:
		t.pc = slotLoad
	}
}

// placed goes on with a claim that has its place: to step 6, or to an abort.
func (x *execution) placed() {
	t := x.t()
	if !x.op().GiveUp {
		t.pc = writeHalf
		return
	}
	t.result = Aborted
	switch {
	case x.y.Chains:
		x.giveUp(Aborted)
	case x.y.Variable || x.y.Indices || x.broken(AbortWordFirst):
		t.pc = abortWord
	case x.broken(CursorFirst):
		t.pc = abortCursorLoad
	default:
		t.pc = abortSlot
	}
}

// written goes to step 7.
func (x *execution) written() {
	x.t().pc = publishMeta
	if x.y.Variable {
		x.t().pc = publishSum
	}
}

func (x *execution) scanOn() {
	x.t().pc = slotScan
	if x.t().s == x.y.Places {
		x.t().pc = slotNone
	}
}

// name writes the place at s into the claimed word.
func (x *execution) name(point string) {
	t, i := x.t(), x.op().Sample
	w := x.y.packWord(writing, x.owner(), generationOf(t.w), t.s+1)
	if !x.cas(wordOf(i), t.w, w) {
		x.fail("a fill of sample %d finds its word changed before it could name its place, so the claim was lost", i)
		return
	}
	x.pass(point)
	t.w, t.f = w, 0
	if x.y.Variable {
		t.pc = extentDone
		return
	}
	if x.y.refers {
		t.pc = slotHand
		return
	}
	x.placed()
}

// moveCursor moves free_from for a slot that was freed: seq + 1, from = min(from, s).
func (x *execution) moveCursor(s uint8) bool {
	f, by := x.t().f, uint16(1)
	if x.broken(CursorWithoutSeq) {
		by = 0
	}
	x.t().f = 0
	return x.cas(freeFromAddr, f, packFree(seqOf(f)+by, min(fromOf(f), s)))
}
