package model

func init() {
	// Take the lock, which proves that the owner is dead.
	table[lockTry] = func(x *execution) {
		t := x.t()
		c := x.client()
		if !x.broken(TakeTogether) && c.taking != 0 && c.taking != uint8(x.me)+1 {
			x.notTaken()
			return
		}
		if x.broken(TakeWithoutLock) {
			x.accesses++
			x.say("(broken: record %d counts as a dead client's)", t.rec)
		} else if !x.tryLock(t.rec) {
			x.notTaken()
			return
		}
		c.taking = uint8(x.me) + 1
		t.j = x.firstEntry()
		switch {
		case t.why != forSetPhase && t.why != forClear:
			t.pc = takeEntry
		case x.broken(PhaseWithoutLock):
			t.q, t.pc = 1, unlock
		default:
			t.pc = phaseTake
		}
	}
	// The phase of a dead clearer, with its record locked; and a phase without an owner, without a
	// lock.
	table[phaseTake] = func(x *execution) {
		t := x.t()
		t.over = x.cas(phaseAddr, t.p, packPhase(clearing, x.owner(), epochOf(t.p)))
		t.pc = unlock
		if x.broken(PhaseWithoutLock) {
			x.phaseTaken()
		}
	}
	table[phaseTakeFree] = func(x *execution) {
		x.t().over = x.cas(phaseAddr, x.t().p, packPhase(clearing, x.owner(), epochOf(x.t().p)))
		x.phaseTaken()
	}
	table[unlock] = func(x *execution) {
		t := x.t()
		if !x.broken(TakeWithoutLock) {
			x.unlock(t.rec)
		}
		x.client().taking = 0
		switch t.why {
		case forSet:
			t.pc = setLoad
		case forSetPhase, forClear:
			if x.broken(PhaseWithoutLock) && t.q == 1 {
				t.q, t.pc = 0, phaseTake
				return
			}
			x.phaseTaken()
		case forDrain:
			t.rec, t.why, t.j, t.v, t.pc = 0, 0, 0, 0, drainEntry
		case forRecover:
			x.recoverOn()
		}
	}

	// Reclaim: for each entry of the record ...
	table[takeEntry] = func(x *execution) {
		t := x.t()
		if t.j >= x.y.Entries {
			x.takenBack()
			return
		}
		if t.v = x.load(entryOf(t.rec, t.j)); t.v == 0 {
			t.j = x.nextEntry()
			return
		}
		t.pc = takeWordLoad
		if x.y.Evicts && !x.y.Chains {
			t.pc = takeVictim
		}
	}
	// 1. ... the word, if it still is the dead client's claim,
	table[takeWordLoad] = func(x *execution) {
		t := x.t()
		w := x.load(wordOf(uint8(t.v) - 1))
		if stateOf(w) != writing || ownerOf(w) != t.rec+1 {
			t.pc = takeIntent
			return
		}
		t.w, t.q = w, 0
		switch {
		case x.broken(TakeEntryFirst):
			t.pc = takeIntent
		case x.broken(TakeWordFirst):
			t.pc = takeWord
		default:
			x.takePlace()
		}
	}
	// the intents of every entry that names the sample. Under the lock entry and intent cannot
	// change, so loading both is one step,
	table[takeIntents] = func(x *execution) {
		t := x.t()
		if t.q == x.y.Entries {
			t.q, t.s, t.pc = 0, 0, takeWord
			if x.y.Chains && !x.broken(WordChainKept) {
				x.free(uint8(t.v), placeOf(t.w), t.j, backWord)
			}
			if x.broken(TakeWordFirst) {
				t.w, t.pc = 0, takeIntent
			}
			return
		}
		q := t.q
		t.q++
		if x.broken(OwnIntentOnly) && q != t.j {
			return
		}
		if x.load(entryOf(t.rec, q)) != t.v {
			return
		}
		x.accesses = 0
		switch intent := x.load(intentOf(t.rec, q)); {
		case x.y.Chains && intent != 0:
			at, rest := pairOf(intent)
			x.free(uint8(t.v), at, q, backIntent)
			t.rest, t.first = rest, true
		case intent == 0, !x.y.Variable && intent == value(placeOf(t.w)): // none, or freed as the word's slot
		case x.y.Variable:
			t.f, t.pc = intent, takeExtent
		default:
			t.s = uint8(intent) - 1
			x.toTakeSlot()
		}
	}
	// first-come: the slot, then the cursor, even if the slot was not the sample's any more:
	// another client may have reclaimed the slot and died before it moved the cursor;
	table[takeSlot] = func(x *execution) {
		t := x.t()
		freed := x.cas(tableOf(t.s), t.v, 0)
		if freed {
			x.pass("reclaim.slot")
		}
		switch {
		case x.broken(CursorFirst):
			t.pc = takeIntents
		case x.broken(CursorWithSlot) && !freed:
			t.pc = takeIntents
		default:
			t.pc = takeCursorLoad
		}
	}
	table[takeCursorLoad] = func(x *execution) {
		x.t().f = x.load(freeFromAddr)
		x.t().pc = takeCursor
	}
	table[takeCursor] = func(x *execution) {
		t := x.t()
		if !x.moveCursor(t.s) {
			t.pc = takeCursorLoad
			return
		}
		x.pass("reclaim.cursor")
		t.pc = takeIntents
		if x.broken(CursorFirst) {
			t.pc = takeSlot
		}
	}
	// arena: the intent's extent with its length, if arena_next says that it was the last
	// allocation;
	table[takeExtent] = func(x *execution) {
		t := x.t()
		unit, units := extentOf(t.f)
		a := x.load(arenaNextAddr)
		t.pc = takeIntents
		if x.broken(AdoptAnyIntent) || nextOwner(a) == t.rec+1 && nextUnit(a) == unit+units {
			t.s, t.pc = unit+1, takeMeta
			if x.broken(AdoptWithoutLength) {
				t.pc = takeWord
			}
		}
	}
	table[takeMeta] = func(x *execution) {
		t := x.t()
		_, units := extentOf(t.f)
		x.putMeta(uint8(t.v)-1, units, 0)
		t.pc = takeWord
	}
	// then the word itself.
	table[takeWord] = func(x *execution) {
		t, place, g := x.t(), uint8(0), uint16(1)
		if x.y.arena() {
			if place = t.s; place == 0 {
				place = placeOf(t.w)
			}
		}
		if x.broken(NoGenerationOnTakeback) {
			g = 0
		}
		if x.cas(wordOf(uint8(t.v)-1), t.w, x.y.packWord(empty, 0, generationOf(t.w)+g, place)) {
			x.pass("reclaim.word")
		}
		if x.broken(TakeWordFirst) {
			x.takePlace()
			return
		}
		t.w, t.f, t.s, t.q, t.pc = 0, 0, 0, 0, takeIntent
		if x.broken(TakeEntryFirst) {
			t.j, t.pc = t.j+1, takeEntry
		}
	}
	// 2. The entry goes last.
	table[takeIntent] = func(x *execution) {
		x.store(intentOf(x.t().rec, x.t().j), 0)
		x.t().pc = takeEntryClear
		if x.y.Evicts && !x.y.Chains {
			x.t().pc = takeVictimClear
		}
		if x.broken(UnlockEarly) && x.t().why != forRegister && x.t().j == x.y.Entries-1 {
			x.s.lock[x.t().rec] = 0
		}
	}
	table[takeEntryClear] = func(x *execution) {
		t := x.t()
		x.store(entryOf(t.rec, t.j), 0)
		x.pass("reclaim.entry")
		if x.broken(TakeEntryFirst) && t.w != 0 {
			x.takePlace()
			return
		}
		t.j, t.pc = x.nextEntry(), takeEntry
	}

	// Register.
	table[registerLock] = func(x *execution) {
		t := x.t()
		if t.r == x.y.Records {
			x.finish(NoRecord)
			return
		}
		if !x.tryLock(t.r) {
			t.r++
			return
		}
		x.client().record = t.r + 1
		x.pass("register.locked")
		t.pc = registerHigh
		if x.broken(RegisterUnseen) {
			x.registered()
		}
	}
	table[registerHigh] = func(x *execution) {
		t := x.t()
		if t.f = x.load(clientsHighAddr); t.f >= value(t.r)+1 {
			x.registered()
			return
		}
		t.pc = registerRaise
	}
	table[registerRaise] = func(x *execution) {
		t := x.t()
		if !x.cas(clientsHighAddr, t.f, value(t.r)+1) {
			t.pc = registerHigh
			return
		}
		x.registered()
	}
	table[registerPhase] = func(x *execution) {
		t := x.t()
		t.p = x.load(phaseAddr)
		if stateOf(t.p) == clearing && ownerOf(t.p) == x.owner() && !x.broken(RegisterIgnoresPhase) {
			t.over, t.again = true, forRegister
			x.pass("clear.phase")
			x.toDrain()
			return
		}
		t.pc = registerDone
	}
	table[registerDone] = func(x *execution) {
		x.client().registered = true
		x.pass("register.done")
		x.finish(Done)
	}

	// Recover: lock every record that lists a claim.
	table[recoverHigh] = func(x *execution) {
		t := x.t()
		t.high = uint8(x.load(clientsHighAddr))
		t.r, t.k, t.pc = 0, 0, recoverEntry
	}
	table[recoverEntry] = func(x *execution) {
		t := x.t()
		if t.r < t.high && t.r == x.record() {
			t.r++
		}
		switch {
		case t.r >= t.high:
			x.finish(Done)
		case t.k == x.y.Entries:
			t.r, t.k = t.r+1, 0
		case x.load(entryOf(t.r, t.k)) == 0:
			t.k++
		default:
			t.rec, t.why, t.pc = t.r, forRecover, lockTry
		}
	}
}

// notTaken goes on when a record's owner lives, or another thread of this client reclaims.
func (x *execution) notTaken() {
	switch t := x.t(); t.why {
	case forDrain:
		t.rec, t.why, t.pc = 0, 0, drainEntry
	case forRecover:
		x.recoverOn()
	default:
		x.finish(Busy)
	}
}

// firstEntry and nextEntry are the order in which a reclaim takes the entries of a record.
func (x *execution) firstEntry() uint8 {
	if x.broken(TakeFalling) {
		return x.y.Entries - 1
	}
	return 0
}

func (x *execution) nextEntry() uint8 {
	if x.broken(TakeFalling) {
		return x.t().j - 1 // 255 after 0
	}
	return x.t().j + 1
}

func (x *execution) recoverOn() {
	t := x.t()
	t.r, t.k, t.rec, t.why, t.j, t.v, t.pc = t.r+1, 0, 0, 0, 0, 0, recoverEntry
}

// takePlace frees or finds the place of the dead client's claim.
func (x *execution) takePlace() {
	t := x.t()
	t.q, t.pc = 0, takeIntents
	switch place := placeOf(t.w); {
	case x.y.Indices:
		t.s, t.pc = 0, takeWord
	case place == 0, x.y.Chains:
	case x.y.Variable:
		t.s, t.pc = place, takeWord
	default:
		t.s = place - 1
		x.toTakeSlot()
	}
}

func (x *execution) toTakeSlot() {
	x.t().pc = takeSlot
	if x.broken(CursorFirst) {
		x.t().pc = takeCursorLoad
	}
}

// takenBack goes on after all entries of the record.
func (x *execution) takenBack() {
	t := x.t()
	if t.why == forRegister {
		t.why, t.rec, t.j, t.v, t.pc = 0, 0, 0, 0, registerPhase
		return
	}
	t.pc = unlock
}

// registered goes on when the record is locked and counted.
func (x *execution) registered() {
	t := x.t()
	t.f, t.rec, t.j, t.why, t.pc = 0, t.r, x.firstEntry(), forRegister, takeEntry
	if x.broken(RegisterFirst) {
		t.pc = registerDone
	}
}
