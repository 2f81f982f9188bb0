package cache

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// adoptAtClaim bounds how long a claim works on an unfinished clear of a dead client while live
// clients hold claims.
const adoptAtClaim = 100 * time.Millisecond

// again is what a step of a claim returns if the claim begins again. No caller of claim sees it.
const again = Result(math.MaxUint8)

// request is what a set asks for.
type request struct {
	sample    uint64
	length    uint64        // bytes of the sample
	took      time.Duration // what the load took; 0: unknown
	overwrite bool          // a READY sample too
	freeOnly  bool          // evict no sample
}

// fill is a fill of this client, from claim to publish or abort.
type fill struct {
	request
	word   shm.Word // the index word that our claim wrote: WRITING, and the old value of each further CAS
	entry  int      // entry in our record, which lists the claim
	crc    uint32   // checksum of the bytes written
	drawn  uint64   // drawn from the allowance and not settled
	memory bool     // memory for a new place is drawn, or the cache has it already
	short  bool     // there is no memory for a new place
	offset uint64   // offset of its slot or extent in the payload, once it has a place; not with chains
	head   uint64   // the slot + 1 that the claim has taken; with chains: at the head of its chain
	slots  []uint32 // with chains: its slots, the first bytes first
}

// fills keeps fills, so that a set allocates nothing: one that is given to a space is on the heap.
var fills = sync.Pool{New: func() any { return new(fill) }}

// claim claims a sample: steps 1 to 5 of docs/spec/protocol.md, Set. It returns a fill and Stored.
// After any other result there is no fill and no claim.
func (c *Cache) claim(q *request) (*fill, Result, error) {
	if !c.admits(q.sample) {
		return nil, Out, nil
	}
	var dead shm.Word // we have reclaimed the claims of its owner
	for {
		w := shm.Word(c.seg.Word(q.sample).Load())
		r, err := c.claimable(q, w, &dead)
		if r == again {
			continue
		}
		if r != Stored || err != nil {
			return nil, r, err
		}
		if f, r, err := c.claimFrom(q, w); r != again {
			return f, r, err
		}
	}
}

// claimable says whether a set may claim a sample that has the word w: Stored. It reclaims the
// claims of a dead client.
func (c *Cache) claimable(q *request, w shm.Word, dead *shm.Word) (Result, error) {
	if kept := c.kept.Load(); kept != nil && w.State() != shm.Ready && !(*kept)(q.sample) {
		return Out, nil
	}
	switch state := w.State(); {
	case state == shm.Empty || state == shm.Ready && q.overwrite:
		return Stored, nil
	case state == shm.Ready:
		return Exists, nil
	case !c.possible(state):
		return Busy, c.corruptWord(q.sample, w, 0)
	case w.Owner() == c.owner:
		return Busy, nil
	case w == *dead:
		return Busy, c.corrupt("sample %d is claimed by client %d, which does not list it", q.sample, w.Owner())
	}
	*dead = w
	if ok, err := c.reclaimOf(w.Owner()); err != nil || !ok {
		return Busy, err
	}
	return again, nil
}

// claimFrom claims a sample that has the word w, EMPTY or READY.
func (c *Cache) claimFrom(q *request, w shm.Word) (*fill, Result, error) {
	if q.length > c.longest {
		return nil, Full, nil
	}
	m := shm.Meta(c.seg.Meta(q.sample).Load())
	place, ok := c.space.keeps(q.sample, w, m, q.length)
	if !ok {
		return nil, Busy, c.corruptWord(q.sample, w, m)
	}
	full := place == 0 && c.space.full(q.length)
	if full && !c.mayEvict(q) && !shm.Phase(c.seg.Phase().Load()).Clearing() {
		if c.seg.Word(q.sample).Load() != uint64(w) {
			return nil, again, nil // another client may have given the last place to this sample
		}
		// Only for an open cache: after its clearer died, a cache may look full, and sets must
		// go on to finish the clear.
		return nil, Full, nil
	}
	entry, r, err := c.list(q.sample)
	if r != Stored || err != nil {
		return nil, r, err
	}
	f := fills.Get().(*fill)
	*f = fill{request: *q, entry: entry, slots: f.slots[:0]}
	if r, err = c.claimListed(f, w, m, place, full); r != Stored || err != nil {
		fills.Put(f)
		return nil, r, err
	}
	return f, Stored, nil
}

// list lists a sample in an entry of our record, unless a clear is running: Stored. It finishes the
// clear of a dead client.
func (c *Cache) list(sample uint64) (entry int, r Result, err error) {
	entry = c.takeEntry(sample)
	if entry < 0 {
		return 0, Busy, nil
	}
	fault.At("claim.entry")
	// sequentially consistent, after the entry: a clearer sees the entry, or we see the phase
	phase := shm.Phase(c.seg.Phase().Load())
	fault.At("claim.phase")
	if !phase.Clearing() {
		return entry, Stored, nil
	}
	c.dropEntry(entry)
	if ok, err := c.adoptClear(phase, adoptAtClaim); err != nil || !ok {
		return 0, Busy, err
	}
	return 0, again, nil
}

// claimListed claims a sample that our record lists, and gives it a place unless it keeps the one
// given.
func (c *Cache) claimListed(f *fill, w shm.Word, m shm.Meta, place uint64, full bool) (Result, error) {
	taken, evicts := place == 0 || place != c.layout.Place(w), c.mayEvict(&f.request)
	// A kept place has its pages, and so has that of a victim.
	if taken && !(full && evicts) && !c.space.draw(f) && !evicts {
		c.dropEntry(f.entry)
		return Full, nil
	}
	generation := c.layout.Generation(w)
	if w.State() == shm.Ready {
		generation++
	}
	f.word = c.layout.Pack(shm.Writing, c.owner, generation, place)
	word := c.seg.Word(f.sample)
	if !word.CompareAndSwap(uint64(w), uint64(f.word)) {
		c.settle(f)
		c.dropEntry(f.entry)
		if shm.Word(word.Load()).State() == shm.Ready {
			return again, nil
		}
		return Busy, nil
	}
	fault.At("claim.word")
	if !taken && !c.space.still(f.sample, m) {
		return Busy, c.abort(f)
	}
	c.loaded(f)
	return c.space.take(f)
}

// takeEntry lists a sample that we are about to claim. It returns -1 when all entries are in use.
func (c *Cache) takeEntry(sample uint64) int {
	for e := range shm.ClaimsPerClient {
		if entry, _ := c.seg.Claim(c.record, e); entry.Load() == 0 && entry.CompareAndSwap(0, sample+1) {
			return e
		}
	}
	return -1
}

// dropEntry frees a claim entry. It clears the intent first, so that a free entry never has one.
func (c *Cache) dropEntry(e int) {
	entry, intent := c.seg.Claim(c.record, e)
	if intent.Load() != 0 {
		intent.Store(0)
	}
	entry.Store(0)
}

// settle says that a fill allocates no more memory.
func (c *Cache) settle(f *fill) {
	c.allowance.Settle(f.drawn)
	f.drawn = 0
}

// lost ends a fill whose word another client has changed. It does not free the place, which that
// client may have given to another sample.
func (c *Cache) lost(f *fill) error {
	c.settle(f)
	c.count(shm.Lost, 1)
	now := shm.Word(c.seg.Word(f.sample).Load())
	c.dropEntry(f.entry)
	return fmt.Errorf("%w: sample %d was claimed with word %#x, which is %#x now: another process broke the "+
		"protocol; verify the cache or create it again",
		shm.ErrLost, f.sample, uint64(f.word), uint64(now))
}
