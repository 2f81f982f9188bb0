package cache

import (
	"errors"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// slotSpace gives each sample one slot. With first-indices a sample has the slot of its own number,
// and needs no table. Else the slot table says which sample has which slot.
type slotSpace struct{ whole }

func (s slotSpace) keeps(sample uint64, w shm.Word, _ shm.Meta, _ uint64) (uint64, bool) {
	if verdict, home := s.policy.Admit(sample); verdict == policy.Home {
		return home + 1, s.possiblePlace(w)
	}
	return s.layout.Place(w), s.possiblePlace(w)
}

func (s slotSpace) full(uint64) bool {
	_, ok := s.policy.Next(uint64(shm.FreeFrom(s.seg.FreeFrom().Load()).From()))
	return !ok
}

// take takes a free slot. If none is free, or memory for it is short, a cache that evicts takes the
// slot of another sample.
func (s slotSpace) take(f *fill) (Result, error) {
	if s.layout.Place(f.word) == 0 {
		r, err := Full, error(nil)
		if f.memory && s.takeFree(f) {
			r = Stored
		} else if s.mayEvict(&f.request) {
			r, err = s.evict(f, s)
		}
		if r != Stored || err != nil {
			return r, errors.Join(err, s.abort(f))
		}
		if r, err = s.nameHead(f); err != nil {
			return r, err
		}
	}
	s.at(f, (s.layout.Place(f.word)-1)*s.stride, s.stride)
	return Stored, nil
}

// takeFree takes a free slot. The slot table names the sample at once, so a taken slot always has a
// holder. The intent names the slot for the client that reclaims it, if this process dies before
// the index word names it.
func (s slotSpace) takeFree(f *fill) bool {
	free := shm.FreeFrom(s.seg.FreeFrom().Load())
	slot, ok := s.policy.Next(uint64(free.From()))
	for ; ok; slot, ok = s.policy.Next(slot + 1) {
		if s.seg.SlotSample(slot).Load() == 0 && s.tryFree(f, slot) {
			break
		}
	}
	end := s.slots
	if ok {
		end = slot + 1
	}
	// One try: another client may have moved the cursor, which only makes scans longer, or freed a
	// slot, and then it must not rise.
	s.seg.FreeFrom().CompareAndSwap(uint64(free), uint64(shm.NewFreeFrom(free.Seq(), uint32(end))))
	return ok
}

// tryFree takes one slot, if it is still free. The word does not name it yet.
func (s slotSpace) tryFree(f *fill, slot uint64) bool {
	_, intent := s.seg.Claim(s.record, f.entry)
	intent.Store(slot + 1)
	fault.At("slot.intent")
	if !s.seg.SlotSample(slot).CompareAndSwap(0, f.sample+1) {
		return false
	}
	fault.At("slot.taken")
	f.head = slot + 1
	return true
}

func (s slotSpace) free(f *fill) (kept uint64) {
	if place := s.layout.Place(f.word); place != 0 && s.seg.HasSlotTable() {
		s.freeSlot(place-1, f.sample, "abort.slot", "abort.cursor")
	}
	return 0
}

// freeSlot frees a slot if its table names sample. It moves the cursor in any case: the client that
// freed the slot may have died before it moved the cursor.
func (s slotSpace) freeSlot(slot, sample uint64, freed, moved string) {
	if s.seg.SlotSample(slot).CompareAndSwap(sample+1, 0) {
		fault.At(freed)
	}
	lowerCursor(s.seg.FreeFrom(), slot, moved)
}

// freeDead frees the slot that the word names, and the intents of all entries that list the sample.
// Two threads of the dead client may have listed the sample. Only the one that claimed it has an
// intent, and the other's entry may come first.
func (s slotSpace) freeDead(record uint32, _ int, sample uint64, w shm.Word) (kept uint64) {
	if !s.seg.HasSlotTable() {
		return 0
	}
	free := func(place uint64) {
		if place-1 < s.slots { // 0 is none
			s.freeSlot(place-1, sample, "reclaim.slot", "reclaim.cursor")
		}
	}
	named := s.layout.Place(w)
	free(named)
	for e := range shm.ClaimsPerClient {
		entry, intent := s.seg.Claim(record, e)
		if entry.Load() == sample+1 && intent.Load() != named {
			free(intent.Load())
		}
	}
	return 0
}

func (s slotSpace) clear() {
	if !s.seg.HasSlotTable() {
		return
	}
	for slot := range s.slots {
		if table := s.seg.SlotSample(slot); table.Load() != 0 {
			table.Store(0)
		}
	}
}

func (s slotSpace) holder(slot uint64) (listed uint64, first bool) {
	return s.seg.SlotSample(slot).Load(), true
}

func (s slotSpace) takeSeen(f *fill, slot uint64) bool {
	return s.hasMemory(f) && s.tryFree(f, slot)
}

// has is false for a sample that came back in another slot.
func (s slotSpace) has(head, slot uint64) bool { return head == slot }

// retire evicts the victim from its slot, which is the claim's then.
func (s slotSpace) retire(f *fill, victim, slot uint64) (Result, error) {
	_, intent := s.seg.Claim(s.record, f.entry)
	list, table := s.seg.Victim(s.record, f.entry), s.seg.SlotSample(slot)
	word := s.seg.Word(victim)
	w := shm.Word(word.Load())
	if w.State() != shm.Ready || s.layout.Place(w) != slot+1 {
		return Full, nil
	}
	intent.Store(slot + 1)
	list.Store(victim + 1)
	fault.At("evict.listed")
	retiring := s.layout.Pack(shm.Retiring, s.owner, s.layout.Generation(w)+1, slot+1)
	if !word.CompareAndSwap(uint64(w), uint64(retiring)) {
		list.Store(0)
		fault.At("evict.unlisted")
		return Full, nil
	}
	fault.At("evict.retired")
	// No client changes the entry and the word but the owner of RETIRING.
	moved := table.CompareAndSwap(victim+1, f.sample+1)
	if moved {
		fault.At("evict.moved")
	}
	gone := s.layout.Pack(shm.Empty, 0, s.layout.Generation(retiring)+1, 0)
	emptied := word.CompareAndSwap(uint64(retiring), uint64(gone))
	if emptied {
		fault.At("evict.emptied")
		s.seg.Persist(victim)
	}
	list.Store(0)
	fault.At("evict.unlisted")
	if !moved || !emptied {
		// the word does not name it, so abort does not free it
		s.freeSlot(slot, f.sample, "abort.slot", "abort.cursor")
		return Busy, s.corrupt("slot %d and its sample %d changed during an eviction", slot, victim)
	}
	s.count(shm.Evicted, 1)
	f.head, f.memory = slot+1, false // the slot has its pages
	return Stored, nil
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
		c.seg.Persist(listed - 1)
	}
}
