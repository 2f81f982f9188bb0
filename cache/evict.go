package cache

import (
	"errors"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// evictTries bounds how many slots one set looks at. Only slots whose samples other clients are
// filling or evicting make it look at another.
const evictTries = 64

// evict gives the slot of another sample to a claimed one: docs/spec/eviction.md, Evict. It returns
// Stored when the word names the slot, and Full, with the claim as it was, when it finds no victim.
func (c *Cache) evict(f *fill) (Result, error) {
	_, intent := c.seg.Claim(c.record, f.entry)
	list := c.seg.Victim(c.record, f.entry)
	for range min(c.slots, evictTries) {
		s := (c.seg.Hand().Add(1) - 1) % c.slots
		table := c.seg.SlotSample(s)
		listed := table.Load()
		switch {
		case listed == 0: // it was freed, and free_from may never say so: who freed it may be dead
			if c.hasMemory(f) && c.tryFreeSlot(f, s) {
				return c.nameSlot(f, s)
			}
			continue
		case listed == f.sample+1: // a dead client's, not reclaimed yet
			continue
		case listed > c.samples:
			return Busy, errors.Join(c.corrupt("slot %d is given to sample %d", s, listed-1), c.abort(f))
		}
		word := c.seg.Word(listed - 1)
		w := shm.Word(word.Load())
		if w.State() != shm.Ready || c.layout.Place(w) != s+1 {
			continue // it is on its way out, or was evicted and came back in another slot
		}
		intent.Store(s + 1)
		list.Store(listed)
		fault.At("evict.listed")
		retiring := c.layout.Pack(shm.Retiring, c.owner, c.layout.Generation(w)+1, s+1)
		if !word.CompareAndSwap(uint64(w), uint64(retiring)) {
			list.Store(0)
			fault.At("evict.unlisted")
			continue
		}
		fault.At("evict.retired")
		// No client changes the entry and the word but the owner of RETIRING.
		moved := table.CompareAndSwap(listed, f.sample+1)
		if moved {
			fault.At("evict.moved")
		}
		gone := c.layout.Pack(shm.Empty, 0, c.layout.Generation(retiring)+1, 0)
		emptied := word.CompareAndSwap(uint64(retiring), uint64(gone))
		if emptied {
			fault.At("evict.emptied")
		}
		list.Store(0)
		fault.At("evict.unlisted")
		if !moved || !emptied {
			return Busy, errors.Join(c.corrupt("slot %d and its sample %d changed during an eviction", s, listed-1),
				c.abort(f))
		}
		c.count(shm.Evicted, 1)
		return c.nameSlot(f, s)
	}
	return Full, nil
}

// hasMemory draws memory for a free slot, once.
func (c *Cache) hasMemory(f *fill) bool {
	if !f.memory && !f.short {
		var err error
		f.drawn, err = c.allowance.Draw(f.length)
		f.memory, f.short = err == nil, err != nil
	}
	return f.memory
}

// endEviction ends an eviction of a dead client: the victim is READY again if the slot is still its
// own, else EMPTY.
func (c *Cache) endEviction(record uint32, entry int) {
	listed := c.seg.Victim(record, entry).Load()
	if listed == 0 {
		return
	}
	if listed > c.samples {
		c.count(shm.Corrupt, 1)
		return
	}
	word := c.seg.Word(listed - 1)
	w := shm.Word(word.Load())
	place := c.layout.Place(w)
	if w.State() != shm.Retiring || w.Owner() != record+1 || place == 0 || place > c.slots {
		return
	}
	to := c.layout.Pack(shm.Empty, 0, c.layout.Generation(w)+1, 0)
	if c.seg.SlotSample(place-1).Load() == listed {
		to = c.layout.Pack(shm.Ready, 0, c.layout.Generation(w), place)
	}
	if word.CompareAndSwap(uint64(w), uint64(to)) {
		fault.At("reclaim.victim")
	}
}
