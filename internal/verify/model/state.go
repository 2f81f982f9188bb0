package model

// State is everything that decides what may happen next: the shared words, the kernel's locks, what
// each thread is about to do, and what only the checker knows. It has no pointers, so that copying
// one is a snapshot and comparing two is exact.
type State struct {
	mem     [words]value
	lock    [maxRecords]uint8 // client + 1 that holds the record's byte; 0: free
	clients [maxClients]client
	threads [maxThreads]thread
	crashes uint8
	shown   [maxSamples]uint8 // the value published last, for a READY sample
}

// client is one handle: one lock description, one owner number, any number of threads.
type client struct {
	record     uint8 // + 1; 0: none, or dead
	registered bool
	dead       bool
	taking     uint8 // thread + 1 that takes something back: one at a time
	extending  uint8 // thread + 1 between arena_next's load and extent.named: one at a time
}

// thread is a program counter with its registers. Registers are zeroed when an operation ends, so
// that finished histories coincide.
type thread struct {
	pc      pc
	op      uint8 // of its program
	entry   uint8
	w       value // the index word as last read or written by us
	f       value // the other word an operation has read: free_from, arena_next, clients_high
	p       value // the phase it has read or made
	s       uint8 // slot, or first unit
	keep    bool  // the sample's extent is large enough
	result  Result
	claimed bool  // word is WRITING by us
	holds   bool  // and the slot or extent at s is ours
	why     why   // whom a lock or a take-back is for
	rec     uint8 // record that is taken back
	j, q    uint8 // its entry, and an entry of it that names the same sample
	v       value // the entry's sample + 1
	again   why   // where a clear that is being finished leads
	over    bool  // that clear was taken over
	high    uint8 // clients_high
	r, k    uint8 // where a drain or a registration stands
	copy    [2 * maxUnits]uint8
	meta    value
	sum     uint8 // the checksum that a reader of an arena has loaded
	expect  uint8 // what the sample showed when its word was read last
	tries   uint8
	buffer  [2]store // stores not seen by others yet; only with TSO
}

type store struct {
	at addr
	v  value
	on bool
}

// why says what a lock on somebody's record is wanted for, and so where to go on.
type why uint8

const (
	forSet      why = iota + 1 // a set that met a dead owner's WRITING
	forSetPhase                // a set that met a dead clearer
	forClear                   // a clear that met a dead clearer; as again: a clear of one's own
	forDrain
	forRecover
	forRegister
)

// Result is how an operation ended.
type Result uint8

// The results of docs/spec/protocol.md, and what a get found.
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
