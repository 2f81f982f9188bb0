package cache

import (
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// takePlace takes a slot or an extent for a claimed sample that has none. After Full the claim is
// aborted.
func (c *Cache) takePlace(f *fill) (Result, error) {
	if c.layout.Place(f.word) == 0 {
		var r Result
		var err error
		if c.variable {
			r, err = c.takeExtent(f)
		} else {
			r, err = c.takeSlot(f)
		}
		if r != Stored || err != nil {
			return r, err
		}
	}
	place := c.layout.Place(f.word) - 1
	if c.variable {
		f.offset = place * shm.UnitBytes
	} else {
		f.offset = place * c.stride
	}
	return Stored, nil
}

// takeSlot takes a free slot. If none is free, or memory for it is short, a cache that evicts takes
// the slot of another sample.
func (c *Cache) takeSlot(f *fill) (Result, error) {
	r, err := Full, error(nil)
	if f.memory {
		r, err = c.takeFreeSlot(f)
	}
	if r == Full && err == nil && c.evicts() && !f.freeOnly {
		r, err = c.evict(f)
	}
	if r == Full && err == nil {
		err = c.abort(f)
	}
	return r, err
}

// takeFreeSlot takes a free slot. The slot table names the sample at once, so a taken slot always
// has a holder. The intent names the slot for the client that reclaims it, if this process dies
// before the index word names it. It returns Full, with the claim as it was, when no slot is free.
func (c *Cache) takeFreeSlot(f *fill) (Result, error) {
	free := shm.FreeFrom(c.seg.FreeFrom().Load())
	for s, ok := c.policy.Next(uint64(free.From())); ok; s, ok = c.policy.Next(s + 1) {
		if c.seg.SlotSample(s).Load() != 0 || !c.tryFreeSlot(f, s) {
			continue
		}
		// One try: another client may have moved the cursor, which only makes scans longer, or
		// freed a slot, and then it must not rise.
		c.seg.FreeFrom().CompareAndSwap(uint64(free), uint64(shm.NewFreeFrom(free.Seq(), uint32(s+1))))
		return c.nameSlot(f, s)
	}
	c.seg.FreeFrom().CompareAndSwap(uint64(free), uint64(shm.NewFreeFrom(free.Seq(), uint32(c.slots))))
	return Full, nil
}

// tryFreeSlot takes one slot, if it is still free. The word does not name it yet.
func (c *Cache) tryFreeSlot(f *fill, s uint64) bool {
	_, intent := c.seg.Claim(c.record, f.entry)
	intent.Store(s + 1)
	fault.At("slot.intent")
	if !c.seg.SlotSample(s).CompareAndSwap(0, f.sample+1) {
		return false
	}
	fault.At("slot.taken")
	return true
}

// nameSlot writes a slot that the claim has taken into its word.
func (c *Cache) nameSlot(f *fill, s uint64) (Result, error) {
	if !c.name(f, s+1) {
		return Busy, c.lost(f)
	}
	fault.At("slot.named")
	c.placed(s)
	return Stored, nil
}

// takeExtent allocates from the end of the arena. It stores the intent before it takes the extent.
// A client that reclaims our claims gives the extent to the sample if arena_next shows that we took
// it. This owner takes one extent at a time: a reclaim could not tell apart two intents that end at
// the same unit.
func (c *Cache) takeExtent(f *fill) (Result, error) {
	units := shm.UnitsFor(f.length)
	_, intent := c.seg.Claim(c.record, f.entry)
	next := c.seg.ArenaNext()
	c.allocating.Lock()
	for {
		a := shm.ArenaNext(next.Load())
		if a.Unit()+units > c.units {
			intent.Store(0)
			c.allocating.Unlock()
			return Full, c.abort(f)
		}
		intent.Store(uint64(shm.NewExtentIntent(a.Unit(), units)))
		fault.At("extent.intent")
		if !next.CompareAndSwap(uint64(a), uint64(shm.NewArenaNext(c.owner, a.Unit()+units))) {
			continue
		}
		fault.At("extent.taken")
		c.setLength(f.sample, f.length) // before the name: a named extent has its length
		named := c.name(f, a.Unit()+1)
		if named {
			fault.At("extent.named")
		}
		c.allocating.Unlock()
		if !named {
			return Busy, c.lost(f)
		}
		return Stored, nil
	}
}

// setLength stores the length of an extent. Only the client that holds or reclaims the claim of the
// sample may call it.
func (c *Cache) setLength(sample, length uint64) {
	meta := c.seg.Meta(sample)
	meta.Store(uint64(shm.Meta(meta.Load()).With(uint32(length))))
}

// name writes a place into the word of a claim.
func (c *Cache) name(f *fill, place uint64) bool {
	named := c.layout.Pack(shm.Writing, c.owner, c.layout.Generation(f.word), place)
	if !c.seg.Word(f.sample).CompareAndSwap(uint64(f.word), uint64(named)) {
		return false
	}
	f.word = named
	return true
}

// freeSlot frees a slot if its table names sample. It moves the cursor in any case: the client that
// freed the slot may have died before it moved the cursor.
func (c *Cache) freeSlot(slot, sample uint64, freed, moved string) {
	if c.seg.SlotSample(slot).CompareAndSwap(sample+1, 0) {
		fault.At(freed)
	}
	for from := c.seg.FreeFrom(); ; {
		f := shm.FreeFrom(from.Load())
		if from.CompareAndSwap(uint64(f), uint64(shm.NewFreeFrom(f.Seq()+1, min(f.From(), uint32(slot))))) {
			break
		}
	}
	fault.At(moved)
}
