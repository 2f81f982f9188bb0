package model

import "fmt"

// pc is the next step of a thread.
type pc uint16

// Steps in the order of docs/spec/protocol.md. Each makes at most one access to a shared word, a
// lock or half a payload.
const (
	finished pc = iota
	setLoad
	setMeta
	setRoom
	setFull
	setEntry
	setPhase
	setWithdraw
	setWord
	costLoad
	costSpread
	costMeta
	setKept
	setLost
	setLostLoad
	slotLoad
	slotScan
	slotIntent
	slotTake
	slotMove
	slotName
	slotHand
	slotReference
	slotNone
	evictSpread
	evictHand
	evictTable
	evictLook
	evictReference
	evictRefer
	evictAgain
	evictIntent
	evictList
	evictRetire
	evictMove
	evictEmpty
	evictUnlist
	chainCount
	chainGroup
	chainScan
	chainPass
	chainIntent
	chainTake
	chainMove
	chainName
	removeLook
	removeList
	removeLoad
	removeClaim
	removeEmpty
	removeIntent
	removeUnlist
	freeLoad
	freeIntent
	freeSlot
	freeCursorLoad
	freeCursor
	extentLoad
	extentNone
	extentIntent
	extentTake
	extentMeta
	extentName
	extentDone
	writeHalf
	writeDone
	publishSum
	publishMeta
	publishWord
	publishIntent
	publishEntry
	abortSlot
	abortCursorLoad
	abortCursor
	abortWord
	abortIntent
	abortEntry
	lockTry
	phaseTake
	phaseTakeFree
	unlock
	takeEntry
	takeVictim
	takeVictimLoad
	takeVictimTable
	takeVictimWord
	takeWordLoad
	takeIntents
	takeSlot
	takeCursorLoad
	takeCursor
	takeExtent
	takeMeta
	takeWord
	takeIntent
	takeVictimClear
	takeEntryClear
	registerLock
	registerHigh
	registerRaise
	registerPhase
	registerDone
	recoverHigh
	recoverEntry
	clearLoad
	clearPhase
	drainHigh
	drainEntry
	drainTimeout
	indexLoad
	indexClear
	tableClear
	cursorLoad
	cursorClear
	arenaClear
	clearOpen
	getWord
	getMeta
	getSum
	getFirst
	getNext
	getSecond
	getCheck
	getCheckMeta
	getHand
	getReference
	getRefer
	steps
)

// table has the steps; each file of the protocol registers its own.
var table [steps]func(*execution)

// firstStep is the first step of a program.
func firstStep(program []Op) pc { return stepOf(program, 0) }

func stepOf(program []Op, k int) pc {
	if k >= len(program) {
		return finished
	}
	return [...]pc{Register: registerLock, Set: setLoad, Get: getWord, Clear: clearLoad,
		Recover: recoverHigh}[program[k].Kind]
}

// execution is one step of one thread, on its own state.
type execution struct {
	y         *system
	s         *State
	me        int
	waits     bool   // the step changed nothing and will be tried again
	point     string // the fault point passed
	result    Result // result of the operation, if it ended in this step
	ended     bool
	violation string
	text      []string // description of the step, if verbose
	verbose   bool
	accesses  int
}

func (x *execution) step() {
	t := x.t()
	run := table[t.pc]
	run(x)
	if x.accesses > 1 {
		panic(fmt.Sprintf("model: step %d made %d accesses", t.pc, x.accesses))
	}
}

func (x *execution) t() *thread      { return &x.s.threads[x.me] }
func (x *execution) ref() *threadRef { return &x.y.threads[x.me] }
func (x *execution) client() *client { return &x.s.clients[x.ref().client] }
func (x *execution) op() *Op         { return &x.ref().program[x.t().op] }
func (x *execution) owner() uint8    { return x.client().record }
func (x *execution) record() uint8   { return x.client().record - 1 }

func (x *execution) broken(m Mutation) bool {
	x.y.asked[m] = true
	return x.y.Broken == m
}

func (x *execution) fail(format string, args ...any) {
	if x.violation == "" {
		x.violation = fmt.Sprintf(format, args...)
	}
}

func (x *execution) say(format string, args ...any) {
	if x.verbose {
		x.text = append(x.text, fmt.Sprintf(format, args...))
	}
}

// finish ends the operation and prepares the next one. A client without a record stops.
func (x *execution) finish(r Result) {
	t := x.t()
	x.result, x.ended = r, true
	if x.verbose {
		x.say("= %s", r)
	}
	op := t.op + 1
	if r == NoRecord {
		op = uint8(len(x.ref().program))
	}
	*t = thread{op: op, pc: stepOf(x.ref().program, int(op)), buffer: t.buffer}
}

// load reads a word: the thread's own latest buffered store to it, or else memory.
func (x *execution) load(a addr) value {
	x.accesses++
	v := x.s.mem[a]
	for _, b := range x.t().buffer {
		if b.on && b.at == a {
			v = b.v
		}
	}
	if x.verbose {
		x.say("load %s: %s", a.name(), a.show(v, x.y.Config))
	}
	return v
}

// store is a release store. With TSO it goes into the thread's buffer, and flush moves it to
// memory.
func (x *execution) store(a addr, v value) {
	x.accesses++
	if x.verbose {
		x.say("store %s = %s", a.name(), a.show(v, x.y.Config))
	}
	if !x.y.TSO {
		x.put(a, v)
		return
	}
	b := &x.t().buffer
	if b[1].on {
		x.flush()
	}
	k := 0
	if b[0].on {
		k = 1
	}
	b[k] = store{v, a, true}
}

// flush moves the oldest buffered store to memory.
func (x *execution) flush() {
	b := &x.t().buffer
	if b[0].on {
		x.put(b[0].at, b[0].v)
		b[0], b[1] = b[1], store{}
	}
}

// drain flushes the whole buffer, as a read-modify-write or a system call does.
func (x *execution) drain() {
	x.flush()
	x.flush()
}

// cas is a sequentially consistent compare-and-swap.
func (x *execution) cas(a addr, old, new value) bool {
	x.accesses++
	x.drain()
	now := x.s.mem[a]
	if x.verbose && now != old {
		x.say("cas %s from %s fails: it is %s", a.name(), a.show(old, x.y.Config), a.show(now, x.y.Config))
	} else if x.verbose {
		x.say("cas %s from %s to %s", a.name(), a.show(old, x.y.Config), a.show(new, x.y.Config))
	}
	if now != old {
		return false
	}
	x.put(a, new)
	return true
}

// add is a fetch-and-add modulo m.
func (x *execution) add(a addr, m value) value {
	x.accesses++
	x.drain()
	old := x.s.mem[a]
	if x.verbose {
		x.say("add 1 to %s: it was %d", a.name(), old)
	}
	x.put(a, (old+1)%m)
	return old
}

// put changes memory. Every change of an index word must be in the table of docs/spec/protocol.md.
func (x *execution) put(a addr, v value) {
	if a.isWord() {
		if old := x.s.mem[a]; !x.y.legal(old, v) && !x.y.Broken.keepsGeneration() {
			x.fail("%s goes from %s to %s, which is not in the table of states", a.name(),
				a.show(old, x.y.Config), a.show(v, x.y.Config))
		}
	}
	x.s.mem[a] = v
}

// putMeta stores another content in the meta of a sample that this thread has claimed, and adds n
// to fills. Only this thread stores to it, so the load before is not a step of its own.
func (x *execution) putMeta(sample, content, n uint8) {
	fills := fillsOf(x.load(metaOf(sample))) + n
	if fills < n {
		panic("model: fills overflow their 8 bits: make the configuration smaller")
	}
	x.accesses = 0
	x.store(metaOf(sample), packMeta(content, fills))
}

// legal says whether an index word may change in this way.
func (y *system) legal(old, new value) bool {
	g, h := generationOf(old), generationOf(new)
	next := g + 1
	if y.Wrap {
		next &= 1
	}
	switch stateOf(old)<<2 | stateOf(new) {
	case empty<<2 | writing:
		return h == g
	case writing<<2 | writing:
		return h == g && ownerOf(old) == ownerOf(new)
	case writing<<2 | ready, retiring<<2 | ready:
		return h == g && placeOf(new) == placeOf(old) && placeOf(new) != 0
	case ready<<2 | retiring:
		return h == next && y.Evicts && placeOf(new) == placeOf(old)
	case ready<<2 | writing, writing<<2 | empty, empty<<2 | empty, ready<<2 | empty, retiring<<2 | empty:
		return h == next
	}
	return false
}

// pass records that a fault point was passed.
func (x *execution) pass(point string) {
	x.point = point
	if x.verbose {
		x.say("(%s)", point)
	}
}

// writePayload is half of a pwrite: it writes the first or the second half of the words of the
// sample at place.
func (x *execution) writePayload(half int, place, units, v uint8) {
	x.accesses++
	x.drain() // a system call
	x.say("pwrite half %d of payload[%d] = v%d", half, place, v)
	for k := range int(units) {
		at := cellAddr + addr(2*int(place)+half*int(units)+k)
		if x.y.Chains {
			at = x.chainCell(place+1, int(units), half*int(units)+k)
		}
		x.s.mem[at] = value(v)
	}
}

// tryLock asks the kernel for the write lock on a record's byte. It never conflicts with locks of
// the same description.
func (x *execution) tryLock(record uint8) bool {
	x.accesses++
	x.drain()
	me := x.ref().client + 1
	if l := &x.s.lock[record]; *l == 0 || *l == me {
		*l = me
		x.say("lock record %d", record)
		return true
	}
	x.say("lock record %d: held by client %d", record, x.s.lock[record]-1)
	return false
}

func (x *execution) unlock(record uint8) {
	x.accesses++
	x.drain()
	if x.s.lock[record] == x.ref().client+1 {
		x.s.lock[record] = 0
	}
	x.say("unlock record %d", record)
}

// die kills a client: its threads stop, and then the kernel closes its description.
func (s *State) die(y *system, c uint8) {
	for t, ref := range y.threads {
		if ref.client == c {
			s.threads[t] = thread{op: uint8(len(ref.program))}
		}
	}
	for r := range s.lock {
		if s.lock[r] == c+1 {
			s.lock[r] = 0
		}
	}
	s.clients[c] = client{dead: true}
}

// enabled says whether a thread can make a step.
func (s *State) enabled(y *system, t int) bool {
	if s.threads[t].pc == finished {
		return false
	}
	ref := &y.threads[t]
	if ref.client == janitorClient {
		return true
	}
	cl, c := &y.Clients[ref.client], &s.clients[ref.client]
	if c.dead || (cl.Late && s.crashes == 0) {
		return false
	}
	return c.registered || cl.ReadOnly || ref.program[s.threads[t].op].Kind == Register
}
