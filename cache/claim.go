package cache

import (
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// adoptAtClaim bounds how long a claim works on an unfinished clear of a dead client while live
// clients hold claims.
const adoptAtClaim = 100 * time.Millisecond

// fill is a fill of this client, from claim to publish or abort.
type fill struct {
	sample   uint64
	length   uint64        // of the sample in bytes
	offset   uint64        // of its slot or extent in the payload, once it has a place
	word     shm.Word      // the index word that our claim wrote: WRITING, and the old value of each further CAS
	entry    int           // of our record, which lists the claim
	crc      uint32        // of the bytes written
	drawn    uint64        // drawn from the allowance and not settled
	memory   bool          // memory for a new place is drawn, or the cache has it already
	short    bool          // there is no memory for a new place
	head     uint64        // with chains: the slot + 1 at the head of the claim's chain
	slots    []uint32      // with chains: its slots, the first bytes first
	took     time.Duration // what the load took; 0: unknown
	freeOnly bool          // evict no sample
}

// claim claims a sample: steps 1 to 5 of docs/spec/protocol.md, Set. It fills in f and returns
// Stored. After any other result no claim is left.
func (c *Cache) claim(sample, length uint64, overwrite bool, f *fill) (Result, error) {
	verdict, home := c.admit(sample)
	if verdict == policy.Never {
		return Out, nil
	}
	word, evicts := c.seg.Word(sample), c.evicts() && !f.freeOnly
	var deadWord shm.Word // we have reclaimed the claims of its owner
	for {
		w := shm.Word(word.Load())
		if kept := c.kept.Load(); kept != nil && w.State() != shm.Ready && !(*kept)(sample) {
			return Out, nil
		}
		switch w.State() {
		case shm.Empty:
		case shm.Ready:
			if !overwrite {
				return Exists, nil
			}
		case shm.Writing, shm.Retiring:
			if !c.possible(w.State()) {
				return Busy, c.corruptWord(sample, w, 0)
			}
			if w.Owner() == c.owner {
				return Busy, nil
			}
			if w == deadWord {
				return Busy, c.corrupt("sample %d is claimed by client %d, which does not list it", sample, w.Owner())
			}
			if ok, err := c.reclaimOf(w.Owner()); err != nil || !ok {
				return Busy, err
			}
			deadWord = w
			continue
		default:
			return Busy, c.corruptWord(sample, w, 0)
		}

		if c.chains && c.slotsFor(length) > c.slots {
			return Full, nil
		}
		m := shm.Meta(c.seg.Meta(sample).Load())
		place, ok := c.placeKept(sample, w, m, length)
		if !ok {
			return Busy, c.corruptWord(sample, w, m)
		}
		if verdict == policy.Home {
			place = home + 1
		}
		full := place == 0 && !c.chains && !c.hasSpace(length)
		if full && !evicts && !shm.Phase(c.seg.Phase().Load()).Clearing() {
			if word.Load() != uint64(w) {
				continue // another client may have given the last place to this sample
			}
			// Only for an open cache: after its clearer died, a cache may look full, and sets must
			// go on to finish the clear.
			return Full, nil
		}

		entry := c.takeEntry(sample)
		if entry < 0 {
			return Busy, nil
		}
		fault.At("claim.entry")
		// sequentially consistent, after the entry: a clearer sees the entry, or we see the phase
		phase := shm.Phase(c.seg.Phase().Load())
		fault.At("claim.phase")
		if phase.Clearing() {
			c.dropEntry(entry)
			if ok, err := c.adoptClear(phase, adoptAtClaim); err != nil || !ok {
				return Busy, err
			}
			continue
		}
		*f = fill{sample: sample, length: length, entry: entry, took: f.took, freeOnly: f.freeOnly}
		taken := place == 0 || place != c.layout.Place(w)
		// A kept place has its pages, and so has that of a victim.
		if taken && !c.chains && !(full && evicts) && !c.hasMemory(f) && !evicts {
			c.dropEntry(entry)
			return Full, nil
		}

		generation := c.layout.Generation(w)
		if w.State() == shm.Ready {
			generation++
		}
		ours := c.layout.Pack(shm.Writing, c.owner, generation, place)
		if !word.CompareAndSwap(uint64(w), uint64(ours)) {
			c.settle(f)
			c.dropEntry(entry)
			if shm.Word(word.Load()).State() == shm.Ready {
				continue
			}
			return Busy, nil
		}
		fault.At("claim.word")
		f.word = ours
		if !taken && c.variable && !c.chains && c.seg.Meta(sample).Load() != uint64(m) {
			return Busy, c.abort(f) // the word has its old value again, but another extent
		}
		c.loaded(f)
		if c.chains {
			f.head = place
			return c.takeChain(f)
		}
		r, err := c.takePlace(f)
		if f.memory && r == Stored && err == nil {
			c.seg.TakeHuge(f.offset, max(length, c.stride), c.allowance) // a slot with its padding, or an extent
		}
		return r, err
	}
}

// placeKept returns the place of an EMPTY or READY sample that the next fill of length bytes keeps;
// 0 for none. It returns false for an impossible place. The claim drops an extent that is too
// small. If the claim kept it, a kill could leave that extent with the new length in meta, and it
// would look larger than it is.
func (c *Cache) placeKept(sample uint64, w shm.Word, m shm.Meta, length uint64) (uint64, bool) {
	place := c.layout.Place(w)
	switch {
	case place == 0:
		return 0, w.State() == shm.Empty
	case !c.variable || c.chains:
		return place, place <= c.slots && w.State() == shm.Ready
	}
	has := c.seg.Length(m)
	if place > c.units || shm.UnitsFor(has) > c.units-(place-1) {
		return 0, c.seg.Word(sample).Load() != uint64(w) // or w has changed, and our CAS will fail
	}
	if shm.UnitsFor(has) < shm.UnitsFor(length) {
		return 0, true
	}
	return place, true
}

// hasSpace says whether the cache may have a free place for length bytes. So a full cache costs no
// claim.
func (c *Cache) hasSpace(length uint64) bool {
	if c.chains {
		return c.hasFreeSlots(c.slotsFor(length), false)
	}
	if c.variable {
		return shm.ArenaNext(c.seg.ArenaNext().Load()).Unit()+shm.UnitsFor(length) <= c.units
	}
	_, ok := c.policy.Next(uint64(shm.FreeFrom(c.seg.FreeFrom().Load()).From()))
	return ok
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
