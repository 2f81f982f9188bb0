package model

// State is all that decides what may happen next: the shared words, the kernel's locks, the next
// step of each thread, and the checker's own records. It has no pointers, so a copy is a snapshot
// and == is exact.
type State struct {
	mem     [words]value
	lock    [maxRecords]uint8 // client + 1 that holds the record's byte; 0: free
	clients [maxClients]client
	threads [maxThreads]thread
	crashes uint8
	costs   [maxSamples]uint8 // in meta; with the policy cost
	spread  uint64            // likewise; a shared word
	shown   [maxSamples]uint8 // the value published last, of a READY sample
}

// client is one handle: one lock description, one owner number, any number of threads.
type client struct {
	record     uint8 // + 1; 0: none, or dead
	registered bool
	draws      uint8 // loads that it has measured, with cost
	dead       bool
	taking     uint8 // thread + 1 that reclaims: one at a time
	extending  uint8 // thread + 1 between arena_next's load and extent.named: one at a time
}

// thread is a program counter with its registers. Registers are zeroed when an operation ends, so
// that equal states compare equal. The order of the fields leaves no gaps: Go then hashes all bytes of a
// state at once, which halves the time of a search.
type thread struct {
	pc       pc
	w        value // the index word as last read or written by this thread
	f        value // the other word that an operation has read: free_from, arena_next, clients_high
	p        value // the phase that it has read or made
	victim   value // the word of sample v-1 while this thread evicts it: RETIRING
	v        value // the entry's sample + 1, or that of a victim
	meta     value
	number   value    // number of the present look, with Config.Policy; the hand at a hit
	worth    uint32   // worth of the best victim so far in this search
	spread   uint64   // as loaded for the cost of this set, or for a search
	buffer   [2]store // stores that other threads do not see yet; only with TSO
	op       uint8    // position in its program
	entry    uint8
	s        uint8 // slot, or first unit
	keep     bool  // the sample's extent is large enough
	full     bool  // free_from says that no slot is free, so the search for one is left out
	result   Result
	claimed  bool  // the word is WRITING by this thread
	holds    bool  // the slot or extent at s belongs to this claim
	why      why   // purpose of a lock or a reclaim
	rec      uint8 // record that is reclaimed
	j, q     uint8 // its entry, and an entry of it that names the same sample
	again    why   // where to go on after finishing the clear of a dead client
	over     bool  // this thread has taken over that clear
	high     uint8 // clients_high
	r, k     uint8 // position of a drain or a registration
	copy     [2 * maxUnits]uint8
	sum      uint8 // the checksum that a reader of an arena has loaded
	expect   uint8 // the content of the sample when its word was read last
	tries    uint8 // tries of a copy; looks of a search for a victim
	best     uint8 // best victim + 1, and 8 times its slot
	cost     uint8 // cost of that victim, or the new one of this set's sample
	refer    uint8 // the reference byte to store
	searches uint8 // for a victim
	victims  uint8 // victims of this set so far
	head, n  uint8 // slot + 1 at the head of the chain of this claim, and how many it has
	of, at   uint8 // a chain that this thread frees: its sample + 1; the slot + 1 to free
	rest     uint8 // what follows that slot
	note     uint8 // the claim entry that notes both
	first    bool  // the slot is of an intent, so it may be free already
	back     back  // what follows when the chain is free
}

type store struct {
	v  value
	at addr
	on bool
}

// why is the purpose of a lock on another client's record. It decides the next step.
type why uint8

const (
	forSet      why = iota + 1 // a set that met a dead owner's WRITING
	forSetPhase                // a set that met the phase of a dead clearer
	forClear                   // a clear that met a dead clearer; in again: this client's own clear
	forDrain
	forRecover
	forRegister
)

// Result is how an operation ended.
type Result uint8

// The results of docs/spec/protocol.md, and those of a get.
const (
	none Result = iota
	Stored
	Exists
	Busy
	Full
	Aborted
	Done
	Timeout
	NoRecord
	Hit
	Miss
)

// String spells the result.
func (r Result) String() string {
	return [...]string{"-", "STORED", "EXISTS", "BUSY", "FULL", "ABORTED", "DONE", "TIMEOUT", "ECLIENTS", "HIT",
		"MISS"}[r]
}
