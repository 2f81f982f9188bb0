package cache

import (
	"sync/atomic"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// space is how the samples of a cache lie in its payload. There are three:
//
//   - slotSpace: each sample has one slot. All samples have the same size.
//   - arenaSpace: each sample has one extent of its own size, and keeps it. No sample ever goes.
//   - chainSpace: each sample has as many slots as it needs. Samples go for others.
//
// A place is 1 + the number of a slot, or of the first unit of an extent; 0 is none. A hit calls no
// space, because a branch is faster: locate, copyChain.
type space interface {
	// keeps returns the place of an EMPTY or READY sample that its next fill of length bytes keeps;
	// 0: the fill takes one. It returns false for an impossible place.
	keeps(sample uint64, w shm.Word, m shm.Meta, length uint64) (place uint64, ok bool)
	// still says, after the claim of a sample that keeps its place, whether the place is the one
	// that keeps saw with meta m.
	still(sample uint64, m shm.Meta) bool
	// full says whether no place for length bytes is free, as far as that is known without a
	// search. So a full cache costs no claim.
	full(length uint64) bool
	// search says whether a cache that is not full has free places for length bytes; withMemory:
	// such as have their memory already.
	search(length uint64, withMemory bool) bool
	// memory returns how much memory the places of a sample of length bytes take.
	memory(length uint64) uint64
	// draw draws memory for a new place before the claim, and returns false if memory is short.
	draw(f *fill) bool

	// take gives a claimed sample its place, unless it keeps one: step 5 of docs/spec/protocol.md,
	// Set. After any result but Stored no claim is left.
	take(f *fill) (Result, error)
	// run returns which bytes of the payload hold the bytes of a fill from at on: at most n, side
	// by side.
	run(f *fill, at, n uint64) (offset, bytes uint64)
	// written notes that all bytes of a fill are written.
	written(f *fill)

	// free frees the place of a fill that is given up. It returns the place that the EMPTY sample
	// keeps.
	free(f *fill) (kept uint64)
	// freeDead is free for the claim of a dead client, which a record lists in an entry.
	freeDead(record uint32, entry int, sample uint64, w shm.Word) (kept uint64)
	// clear frees all places of a cache without claims.
	clear()
	// usage completes what Stats says of an arena. named: bytes of the extents that words name.
	usage(s *Stats, named uint64)
}

func newSpace(c *Cache) space {
	switch {
	case c.chains:
		return newChainSpace(c)
	case c.variable:
		return &arenaSpace{whole: whole{c}}
	}
	return slotSpace{whole{c}}
}

// whole is what slots and extents share: the bytes of a sample lie side by side, from fill.offset
// on.
type whole struct{ *Cache }

func (whole) still(uint64, shm.Meta) bool { return true }

func (whole) search(_ uint64, withMemory bool) bool { return !withMemory }

func (whole) memory(length uint64) uint64 { return length }

func (s whole) draw(f *fill) bool { return s.hasMemory(f) }

func (whole) run(f *fill, at, n uint64) (offset, bytes uint64) { return f.offset + at, n }

func (whole) written(*fill) {}

func (whole) usage(*Stats, uint64) {}

// at says where a fill begins in the payload, whose place has so many bytes. A place whose memory
// was drawn is new, and may get huge pages.
func (s whole) at(f *fill, offset, bytes uint64) {
	f.offset = offset
	if f.memory {
		s.seg.TakeHuge(offset, bytes, s.allowance)
	}
}

// slotOf returns the offset in the payload of the slot that a word names, and whether there is such
// a slot.
func (c *Cache) slotOf(w shm.Word) (offset uint64, ok bool) {
	place := c.layout.Place(w) - 1 // place 0, which is none, becomes huge
	return place * c.stride, place < c.slots
}

// possiblePlace says whether an EMPTY or READY sample has the place that it must have in a cache with
// slots: none, or a slot.
func (c *Cache) possiblePlace(w shm.Word) bool {
	_, ok := c.slotOf(w)
	return ok && w.State() == shm.Ready || c.layout.Place(w) == 0 && w.State() == shm.Empty
}

// locate returns the offset in the payload of a READY sample with this length, with chains that of
// the slot at the head. It returns false for a place or a length that the payload cannot have, so
// that no corrupt word leads out of it, and no buffer is made for such a length.
func (c *Cache) locate(w shm.Word, length uint64) (offset uint64, ok bool) {
	switch {
	case !c.variable:
		return c.slotOf(w)
	case length > c.sampleBytes || length > c.longest:
		return 0, false
	case c.chains:
		return c.slotOf(w)
	}
	place := c.layout.Place(w) - 1
	return place * shm.UnitBytes, place < c.units && shm.UnitsFor(length) <= c.units-place
}

// writePayload writes bytes of a fill at an offset of the sample.
func (c *Cache) writePayload(f *fill, p []byte, at uint64) (done int, err error) {
	for len(p) > 0 && err == nil {
		offset, n := c.space.run(f, at, uint64(len(p)))
		var wrote int
		wrote, err = c.seg.WritePayload(p[:n], offset)
		done += wrote
		p, at = p[n:], at+n
	}
	return done, err
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

// nameHead writes the slots that a claim has taken into its word.
func (c *Cache) nameHead(f *fill) (Result, error) {
	if !c.name(f, f.head) {
		return Busy, c.lost(f)
	}
	fault.At("slot.named")
	c.placed(f.head - 1)
	return Stored, nil
}

// lowerCursor tells searches for a free slot that one was freed.
func lowerCursor(cursor *atomic.Uint64, slot uint64, moved string) {
	for {
		f := shm.FreeFrom(cursor.Load())
		lower := shm.NewFreeFrom(f.Seq()+1, min(f.From(), uint32(slot)))
		if cursor.CompareAndSwap(uint64(f), uint64(lower)) {
			break
		}
	}
	fault.At(moved)
}

// hasMemory draws memory for a new place, once. It returns false when memory is short, or the check
// of it failed.
func (c *Cache) hasMemory(f *fill) bool {
	if !f.memory && !f.short {
		var err error
		f.drawn, err = c.allowance.Draw(c.space.memory(f.length))
		f.memory, f.short = err == nil, err != nil
	}
	return f.memory
}
