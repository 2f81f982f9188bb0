package cache

import (
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// adoptAtClaim bounds how long a claim works at the clear that a dead client left unfinished, when claims of live clients are in its way.
const adoptAtClaim = 100 * time.Millisecond

// fill is a claim of ours under way: from claim to publish or abort.
type fill struct {
	sample uint64
	length uint64   // of the sample in bytes
	offset uint64   // of its slot or extent in the payload, once it has a place
	word   shm.Word // the exact index word of ours: WRITING, and what every further CAS starts from
	entry  int      // of our record, which lists the claim
	crc    uint32   // of the bytes written
	drawn  uint64   // from the allowance, and not settled yet
}

// claim makes a sample ours to fill: steps 1 to 5 of docs/spec/protocol.md, Set. Stored: f is filled in. Everything else leaves nothing behind.
func (c *Cache) claim(sample, length uint64, overwrite bool, f *fill) (Result, error) {
	verdict, home := c.admit(sample)
	if verdict == policy.Never {
		return Out, nil
	}
	word := c.seg.Word(sample)
	var deadWord shm.Word // its owner's claims are reclaimed already
	for {
		w := shm.Word(word.Load())
		switch w.State() {
		case shm.Empty:
		case shm.Ready:
			if !overwrite {
				return Exists, nil
			}
		case shm.Writing:
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

		m := shm.Meta(c.seg.Meta(sample).Load())
		place, ok := c.placeKept(sample, w, m, length)
		if !ok {
			return Busy, c.corruptWord(sample, w, m)
		}
		if verdict == policy.Home {
			place = home + 1
		}
		if place == 0 && !c.room(length) && !shm.Phase(c.seg.Phase().Load()).Clearing() {
			if word.Load() != uint64(w) {
				continue // the last place went to this sample, perhaps
			}
			return Full, nil // an open cache only: one whose clearer died half-way may look full, and would never be cleared if sets stopped here
		}

		entry := c.takeEntry(sample)
		if entry < 0 {
			return Busy, nil
		}
		fault.At("claim.entry")
		phase := shm.Phase(c.seg.Phase().Load()) // sequentially consistent, after the entry: a clearer sees one or we see the other
		fault.At("claim.phase")
		if phase.Clearing() {
			c.dropEntry(entry)
			if ok, err := c.adoptClear(phase, adoptAtClaim); err != nil || !ok {
				return Busy, err
			}
			continue
		}
		var drawn uint64
		taken := place == 0 || place != c.layout.Place(w)
		if taken { // a place that is kept has its pages
			var err error
			if drawn, err = c.allowance.Draw(length); err != nil { // short, or nobody can tell
				c.dropEntry(entry)
				return Full, nil
			}
		}

		generation := c.layout.Generation(w)
		if w.State() == shm.Ready {
			generation++
		}
		ours := c.layout.Pack(shm.Writing, c.owner, generation, place)
		if !word.CompareAndSwap(uint64(w), uint64(ours)) {
			c.allowance.Settle(drawn)
			c.dropEntry(entry)
			if shm.Word(word.Load()).State() == shm.Ready {
				continue
			}
			return Busy, nil
		}
		fault.At("claim.word")
		*f = fill{sample: sample, length: length, word: ours, entry: entry, drawn: drawn}
		if !taken && c.variable && c.seg.Meta(sample).Load() != uint64(m) {
			return Busy, c.abort(f) // the word has come back, with another extent behind it
		}
		r, err := c.takePlace(f)
		if taken && r == Stored && err == nil {
			c.seg.TakeHuge(f.offset, max(length, c.stride), c.allowance) // a slot with its padding, or an extent
		}
		return r, err
	}
}

// placeKept returns the place of a sample that is EMPTY or READY which the next fill of length bytes goes to as well; 0 for none. false: the place cannot be.
// An extent that is too small is dropped by the claim itself: kept until a new one is named, it would meet the new length in meta, and look larger than it is after a kill.
func (c *Cache) placeKept(sample uint64, w shm.Word, m shm.Meta, length uint64) (uint64, bool) {
	place := c.layout.Place(w)
	switch {
	case place == 0:
		return 0, w.State() == shm.Empty
	case !c.variable:
		return place, place <= c.slots && w.State() == shm.Ready
	}
	has := c.seg.Length(m)
	if place > c.units || shm.UnitsFor(has) > c.units-(place-1) {
		return 0, c.seg.Word(sample).Load() != uint64(w) // or it just is not of w any more; our CAS will fail
	}
	if shm.UnitsFor(has) < shm.UnitsFor(length) {
		return 0, true
	}
	return place, true
}

// room says whether a place for length bytes may be found, so that a full cache is not claimed from for nothing.
func (c *Cache) room(length uint64) bool {
	if c.variable {
		return shm.ArenaNext(c.seg.ArenaNext().Load()).Unit()+shm.UnitsFor(length) <= c.units
	}
	_, ok := c.policy.Next(uint64(shm.FreeFrom(c.seg.FreeFrom().Load()).From()))
	return ok
}

// takeEntry lists a sample as about to be claimed; -1 when all entries are in use.
func (c *Cache) takeEntry(sample uint64) int {
	for e := range shm.ClaimsPerClient {
		if entry, _ := c.seg.Claim(c.record, e); entry.Load() == 0 && entry.CompareAndSwap(0, sample+1) {
			return e
		}
	}
	return -1
}

// dropEntry ends a claim's listing: the intent first, so that a free entry never has one.
func (c *Cache) dropEntry(e int) {
	entry, intent := c.seg.Claim(c.record, e)
	if intent.Load() != 0 {
		intent.Store(0)
	}
	entry.Store(0)
}

// settle says that a fill takes no more memory.
func (c *Cache) settle(f *fill) {
	c.allowance.Settle(f.drawn)
	f.drawn = 0
}

// lost ends a fill whose word changed under it. Its place is left alone: whoever changed the word may have given it away.
func (c *Cache) lost(f *fill) error {
	c.settle(f)
	c.count(shm.Lost, 1)
	now := shm.Word(c.seg.Word(f.sample).Load())
	c.dropEntry(f.entry)
	return fmt.Errorf("%w: sample %d was claimed with word %#x, which is %#x now: somebody broke the protocol; verify the cache or create it anew",
		shm.ErrLost, f.sample, uint64(f.word), uint64(now))
}
