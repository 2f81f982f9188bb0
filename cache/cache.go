package cache

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
)

// Cache is a handle: one attached client of a segment, with one owner number. Attach makes it and
// Close ends it.
type Cache struct {
	stripes [shm.CounterStripes]stripe
	closed  atomic.Bool // set by Close before it waits for the stripes to empty

	seg         *shm.Segment
	layout      shm.WordLayout
	policy      policy.Policy // admits to slots; unused in an arena without chains
	samples     uint64
	slots       uint64 // 0 in an arena without chains
	stride      uint64
	sampleBytes uint64 // bytes of each sample; in an arena of the largest
	units       uint64 // units of an arena without chains; 0 with slots
	variable    bool
	chains      bool                             // samples lie in chains of slots: variable, with a policy that evicts
	space       space                            // how samples lie in the payload
	longest     uint64                           // bytes that all slots of chains hold; no limit without chains
	retires     bool                             // a set may make a sample RETIRING, and take its slot
	rule        policy.Rule                      // which sample goes; nil if none ever goes
	costs       bool                             // the policy decides by the costs of loads
	references  bool                             // hits store reference bytes
	hits        policy.Hits                      // what hits store in reference bytes
	hand        *atomic.Uint64                   // the hand, if hits need it, else nil
	next        func(sample, soon uint64) uint64 // when a sample is read next; nil: unknown, or no matter
	leaves      func(sample, next uint64)        // called before a sample goes; nil: not called
	seed        uint64                           // seed of the policy
	readOnly    bool

	record uint32 // record of this client; owner is record + 1, and 0 when read-only
	owner  uint32
	locks  shm.Locks

	// one goroutine at a time tries the locks of other clients: locks of one description never
	// conflict
	reclaiming atomic.Bool
	clearing   atomic.Bool                              // one goroutine at a time runs a clear of this handle
	pooling    sync.Mutex                               // protects pool
	pool       policy.Pool                              // pool of the policy planned, with plans
	allowance  *memory.Allowance                        // allowance that fills draw on; nil when read-only
	searches   atomic.Uint64                            // for a victim, of this handle
	loads      atomic.Uint64                            // loads whose times this handle was told
	offered    atomic.Uint64                            // calls of MeasureNext
	kept       atomic.Pointer[func(sample uint64) bool] // the samples that this handle stores; nil: all
	closing    sync.Mutex                               // protects closeErr and lets a second Close wait for the first
	shut       bool
	closeErr   error
}

// stripe holds the words that a goroutine changes on each hit. A handle has as many stripes as a
// client record, each on its own cache line, so that goroutines on different cores do not contend.
//
// Close goes by entered and left, which are in this process. The counters in the segment are not: any program that
// maps it may change them.
type stripe struct {
	entered      atomic.Uint64
	left         atomic.Uint64 // operations that ended
	hits, misses *atomic.Uint64
	uncounted    [2]atomic.Uint64 // counters of a read-only client
	_            [80]byte
}

var _ = [1]struct{}{}[unsafe.Sizeof(stripe{})-128]

// inside returns the number of inflight operations, or more: operations may begin between the
// loads. It adds up the ended ones first, so the result is never too small.
func (l *stripe) inside() uint64 {
	left := l.left.Load()
	return l.entered.Load() - left
}

// count counts reads that did not enter one by one. The caller has entered.
func (l *stripe) count(hits, misses int) {
	l.hits.Add(uint64(hits))
	l.misses.Add(uint64(misses))
}

// stripeNow chooses a stripe by the address of the caller's stack. That is cheap, and mostly the
// same for one goroutine. Each choice is correct.
func (c *Cache) stripeNow() *stripe { return &c.stripes[stripeNumber()] }

func stripeNumber() uint64 {
	var here byte
	// Goroutine stacks are at least 8 KiB apart once they have grown. The multiplication spreads
	// neighbours over the four stripes.
	return uint64(uintptr(unsafe.Pointer(&here))>>13) * 0x9e3779b97f4a7c15 >> 62
}

// enter begins an operation on the segment's memory, so that Close waits for its end. After
// ErrClosed the caller MUST NOT leave.
func (c *Cache) enter() (*stripe, error) {
	l := c.stripeNow()
	l.entered.Add(1) // sequentially consistent, like the load: either Close sees this operation, or it sees closed
	if c.closed.Load() {
		l.leave()
		return nil, errClosed
	}
	return l, nil
}

// hit ends a read and counts a hit. miss does so for a miss.
func (l *stripe) hit() {
	l.hits.Add(1)
	l.left.Add(1)
}

func (l *stripe) miss() {
	l.misses.Add(1)
	l.left.Add(1)
}

// leave ends an operation that counts neither as a hit nor as a miss.
func (l *stripe) leave() { l.left.Add(1) }

// enterToWrite is enter for an operation that stores to the segment. It also returns ErrReadOnly.
func (c *Cache) enterToWrite(verb string) (*stripe, error) {
	l, err := c.enter()
	if err == nil && c.readOnly {
		l.leave()
		return nil, fmt.Errorf("%w: cannot %s; attach with write permission on the cache", shm.ErrReadOnly, verb)
	}
	return l, err
}

var errClosed = fmt.Errorf("%w: the handle was closed before this call; attach again", shm.ErrClosed)

// count adds to a counter of this client. A read-only client counts nothing.
func (c *Cache) count(k shm.Counter, n uint64) {
	if !c.readOnly {
		c.seg.Counter(c.record, int(stripeNumber()), k).Add(n)
	}
}

// CountPassed adds to the counter "passed": samples outside the schema that a wrapper did not
// cache.
func (c *Cache) CountPassed(n uint64) error {
	l, err := c.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	c.count(shm.Passed, n)
	return nil
}

// Segment returns the segment. The caller of Attach owns it.
func (c *Cache) Segment() *shm.Segment { return c.seg }

// ReadOnly says whether this client may only read. Its reads are not counted in the segment.
func (c *Cache) ReadOnly() bool { return c.readOnly }

// MeasureNext says whether the caller should measure its next load, for SetLoaded: each if the policy decides by what
// loads took, else enough for `stocached advise` (docs/spec/policies.md, Who measures).
func (c *Cache) MeasureNext() bool {
	if c.costs {
		return true
	}
	n := c.offered.Add(1)
	return n <= measuredFirst || n%measuredOf == 0
}

// Of the loads for a policy that needs no costs, so many of the first and then one in so many are measured.
const (
	measuredFirst = 1024
	measuredOf    = 16
)

// Life counts the clears of the cache; 0 if it is closed.
func (c *Cache) Life() uint64 {
	l, err := c.enter()
	if err != nil {
		return 0
	}
	defer l.leave()
	return shm.Phase(c.seg.Phase().Load()).Epoch()
}

// Evicts says whether a set into a full cache may give the slot of another sample to its own.
func (c *Cache) Evicts() bool { return c.evicts() }

// HasSpace says whether a set of length bytes may store sample i without an eviction, as far as slots and
// extents are known. An index out of range has none.
func (c *Cache) HasSpace(i int, length uint64) bool {
	switch {
	case uint64(i) >= c.samples:
		return false
	case c.seg.Policy == shm.PolicyFirstIndices:
		return uint64(i) < c.slots
	case !c.chains && c.layout.Place(shm.Word(c.seg.Word(uint64(i)).Load())) != 0:
		return true // it keeps its place
	case shm.Phase(c.seg.Phase().Load()).Clearing():
		return true // the set ends the clear of a client that died
	}
	return c.hasFree(length)
}

func (c *Cache) hasFree(length uint64) bool {
	return !c.space.full(length) && c.space.search(length, false)
}

// HasMemory says whether there is memory for length bytes more: nil, or shm.ErrFull with the numbers. Errors: also
// shm.ErrSystem, ErrClosed.
func (c *Cache) HasMemory(length uint64) error {
	l, err := c.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	err = c.allowance.Room(c.space.memory(length))
	if err != nil && c.space.search(length, true) {
		return nil // slots that were freed have theirs
	}
	return err
}

// FitsNow is Fits, or while memory is short about how many samples have memory.
func (c *Cache) FitsNow() uint64 {
	fits := c.Fits()
	if c.Short() == nil {
		return fits
	}
	allocated, err := c.seg.AllocatedBytes()
	if err != nil {
		return fits
	}
	payload := float64(allocated - min(allocated, c.seg.PayloadOffset))
	return min(fits, uint64(float64(fits)*payload/float64(c.seg.PayloadBytes)))
}

// Short says whether memory is short: nil, or shm.ErrFull with the numbers if the cache has free places and no memory for
// a sample of the mean size that this client has stored. Errors: also shm.ErrSystem, ErrClosed.
func (c *Cache) Short() error {
	l, err := c.enter()
	if err != nil {
		return err
	}
	n, free := c.sampleBytes, false
	if c.variable && !c.readOnly {
		if stored := c.seg.Count(c.record, shm.Stored); stored != 0 {
			n = c.seg.Count(c.record, shm.StoredBytes) / stored
		}
	}
	if c.seg.HasSlotTable() || c.variable {
		free = c.hasFree(n)
	} else { // no table says which slots are free
		allocated, err := c.seg.AllocatedBytes()
		free = err == nil && allocated < c.seg.PayloadBytes
	}
	l.leave()
	if !free {
		return nil
	}
	return c.HasMemory(n)
}

// Fits returns about how many samples fit. In an arena that evicts it counts them as long as those that
// clients of this record have stored. 0: an arena that does not evict.
func (c *Cache) Fits() uint64 {
	var stored, bytes uint64
	if c.chains && !c.readOnly {
		stored, bytes = c.seg.Count(c.record, shm.Stored), c.seg.Count(c.record, shm.StoredBytes)
	}
	return c.seg.Fits(stored, bytes)
}

// Owner returns the client's owner number, record + 1; 0 for a read-only client.
func (c *Cache) Owner() uint32 { return c.owner }

// Reads returns how many hits and misses this client's record counts, those of earlier clients of the
// record included.
func (c *Cache) Reads() (n uint64) {
	for k := range c.stripes {
		n += c.stripes[k].hits.Load() + c.stripes[k].misses.Load()
	}
	return n
}

// Samples returns the number of samples of the dataset.
func (c *Cache) Samples() int { return int(c.samples) }

// checkIndex returns ErrIndex for an index that is no sample.
func (c *Cache) checkIndex(i int) error {
	if uint64(i) >= c.samples { // a negative index becomes huge
		return fmt.Errorf("%w: index %d, the cache has samples 0 to %d", shm.ErrIndex, i, c.samples-1)
	}
	return nil
}

// admits says whether a sample may have a place.
func (c *Cache) admits(sample uint64) bool {
	if c.variable {
		return true
	}
	verdict, _ := c.policy.Admit(sample)
	return verdict != policy.Never
}

// corrupt counts and reports an impossible value.
func (c *Cache) corrupt(format string, args ...any) error {
	c.count(shm.Corrupt, 1)
	return fmt.Errorf("%w: %s; remove the cache and create it again", shm.ErrCorrupt, fmt.Sprintf(format, args...))
}

// corruptWord reports the index record of a sample.
func (c *Cache) corruptWord(sample uint64, w shm.Word, m shm.Meta) error {
	return c.corrupt("sample %d has state %d, owner %d, place %d, length %d", sample, w.State(), w.Owner(),
		c.layout.Place(w), c.seg.Length(m))
}
