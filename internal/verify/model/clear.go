package model

func init() {
	// 1. Close the phase.
	table[clearLoad] = func(x *execution) {
		t := x.t()
		t.p, t.again = x.load(phaseAddr), forClear
		switch o := ownerOf(t.p); {
		case stateOf(t.p) == 0:
			t.pc = clearPhase
			if x.broken(DrainBeforePhase) || x.broken(HighBeforePhase) {
				t.pc = drainHigh
			}
		case o == x.owner():
			x.finish(Busy)
		case o == 0:
			t.pc = phaseTakeFree
		default:
			t.rec, t.why, t.pc = o-1, forClear, lockTry
		}
	}
	table[clearPhase] = func(x *execution) {
		t := x.t()
		p := packPhase(clearing, x.owner(), epochOf(t.p))
		if x.broken(PhasePlainStore) {
			x.store(phaseAddr, p)
		} else if !x.cas(phaseAddr, t.p, p) {
			x.finish(Busy)
			return
		}
		x.pass("clear.phase")
		t.p = p
		switch {
		case x.broken(DrainBeforePhase):
			x.pass("clear.drained")
			t.r, t.pc = 0, indexLoad
		case x.broken(HighBeforePhase):
			t.pc = drainEntry
		default:
			x.toDrain()
		}
	}

	// 2. Wait until every entry was 0 once.
	table[drainHigh] = func(x *execution) {
		t := x.t()
		t.high = uint8(x.load(clientsHighAddr))
		t.r, t.k, t.pc = 0, 0, drainEntry
		if x.broken(HighBeforePhase) && t.again == forClear && !t.over {
			t.pc = clearPhase
		}
	}
	table[drainEntry] = func(x *execution) {
		t := x.t()
		if t.r == t.high {
			if x.broken(DrainBeforePhase) && t.again == forClear && !t.over {
				t.pc = clearPhase
				return
			}
			x.pass("clear.drained")
			t.r, t.k, t.pc = 0, 0, indexLoad
			return
		}
		if x.load(entryOf(t.r, t.k)) == 0 || x.broken(DrainWithoutWait) {
			if t.k++; t.k == x.y.Entries {
				t.r, t.k = t.r+1, 0
			}
			return
		}
		// An entry of a dead owner: reclaim. Of a live one, this client included: wait. Probing the
		// lock is not a step of its own, because taking the lock is one.
		if t.r != x.record() && x.s.lock[t.r] == 0 && x.client().taking == 0 || x.broken(TakeWithoutLock) &&
			t.r != x.record() {
			t.rec, t.why, t.pc = t.r, forDrain, lockTry
			return
		}
		x.waits = true
	}
	// The end of a wait that gives up.
	table[drainTimeout] = func(x *execution) {
		t := x.t()
		p := packPhase(0, 0, epochOf(t.p))
		if t.over && !x.broken(HalfClearOpened) {
			p = packPhase(clearing, 0, epochOf(t.p))
		}
		if !x.cas(phaseAddr, packPhase(clearing, x.owner(), epochOf(t.p)), p) {
			x.fail("a clearer that gives up finds the phase moved by another")
			return
		}
		x.cleared(Timeout)
	}

	// 3. Index words, slot table, cursors.
	table[indexLoad] = func(x *execution) {
		t := x.t()
		t.w = x.load(wordOf(t.r))
		if stateOf(t.w) == empty && placeOf(t.w) == 0 {
			x.indexOn()
			return
		}
		t.pc = indexClear
	}
	table[indexClear] = func(x *execution) {
		t := x.t()
		g := generationOf(t.w) + 1
		if x.broken(NoGenerationOnClear) {
			g--
		}
		if !x.cas(wordOf(t.r), t.w, x.y.packWord(empty, 0, g, 0)) {
			x.fail("a clear finds the word of sample %d changed by another", t.r)
			return
		}
		x.pass("clear.index")
		x.indexOn()
	}
	table[tableClear] = func(x *execution) {
		t := x.t()
		x.store(tableOf(t.r), 0)
		if t.r++; t.r == x.y.Places {
			t.r, t.pc = 0, cursorLoad
		}
	}
	table[cursorLoad] = func(x *execution) {
		x.t().w = x.load(cursorOf(x.t().r))
		x.t().pc = cursorClear
	}
	table[cursorClear] = func(x *execution) {
		t := x.t()
		x.store(cursorOf(t.r), packFree(seqOf(t.w)+1, 0))
		if t.r++; x.y.Chains && t.r < x.y.groups() {
			t.pc = cursorLoad
			return
		}
		t.r, t.pc = 0, arenaClear
	}
	table[arenaClear] = func(x *execution) {
		x.store(arenaNextAddr, 0)
		x.pass("clear.cursors")
		x.t().pc = clearOpen
		if x.broken(OpenBeforeTable) {
			x.cleared(Done)
		}
	}

	// 4. Open the phase again.
	table[clearOpen] = func(x *execution) {
		t := x.t()
		if !x.cas(phaseAddr, packPhase(clearing, x.owner(), epochOf(t.p)), packPhase(0, 0, epochOf(t.p)+1)) {
			x.fail("a clearer finds the phase moved by another when it opens it")
			return
		}
		x.pass("clear.open")
		if x.broken(OpenBeforeTable) {
			t.r, t.w, t.pc = 0, 0, tableClear
			return
		}
		x.cleared(Done)
	}
}

// toDrain begins step 2, after this thread has closed the phase.
func (x *execution) toDrain() {
	t := x.t()
	t.rec, t.why, t.q, t.pc = 0, 0, 0, drainHigh
}

// phaseTaken goes on after the attempt to take over a dead clearer's phase.
func (x *execution) phaseTaken() {
	t := x.t()
	if t.over {
		x.pass("clear.phase")
		x.toDrain()
		return
	}
	again := t.again
	t.rec, t.why, t.again, t.p = 0, 0, 0, 0
	t.pc = setLoad
	if again == forClear {
		t.pc = clearLoad
	}
}

func (x *execution) indexOn() {
	t := x.t()
	t.pc = indexLoad
	if t.r++; t.r == x.y.Samples {
		t.r, t.w, t.pc = 0, 0, tableClear
		switch {
		case !x.y.table() || x.broken(TableKept):
			t.pc = cursorLoad
		case x.broken(OpenBeforeTable):
			t.pc = clearOpen
		}
		if x.broken(CursorKept) && !x.y.Variable {
			t.pc = clearOpen
		}
	}
}

// cleared returns to the operation that needed the phase open. After a clear that was taken over,
// the thread begins its own.
func (x *execution) cleared(r Result) {
	t := x.t()
	switch {
	case t.again == forRegister:
		*t = thread{pc: registerDone, op: t.op, buffer: t.buffer}
	case t.again == forClear && !t.over:
		x.finish(r)
	case r == Timeout:
		x.finish(Busy)
	case t.again == forClear:
		*t = thread{pc: clearLoad, op: t.op, buffer: t.buffer}
	default:
		t.pc = setLoad
	}
}
