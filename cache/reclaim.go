package cache

import (
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// reclaimOf reclaims the claims of an owner if it is dead. It returns false if the owner lives, or
// if another goroutine of this handle reclaims.
func (c *Cache) reclaimOf(owner uint32) (bool, error) {
	if owner == 0 || owner > c.seg.ClientRecords {
		return false, c.corrupt("a claim of client %d, the table has %d records", owner, c.seg.ClientRecords)
	}
	if owner == c.owner || !c.reclaiming.CompareAndSwap(false, true) {
		return false, nil
	}
	defer c.reclaiming.Store(false)
	// The kernel frees the lock after the owner's last thread has ended, so the owner cannot store
	// any more.
	ok, err := c.locks.TryLock(owner - 1)
	if err != nil || !ok {
		return false, err
	}
	c.reclaimRecord(owner-1, shm.Recovered)
	return true, c.locks.Unlock(owner - 1)
}

// reclaimRecord reclaims the claims that a record lists and returns their number. The caller MUST
// hold the record's lock, and no thread of its owner may run the protocol. If the caller dies,
// another client may repeat it from the start; docs/spec/protocol.md gives the reason.
func (c *Cache) reclaimRecord(record uint32, count shm.Counter) (claims int) {
	for e := range shm.ClaimsPerClient {
		entry, intent := c.seg.Claim(record, e)
		listed := entry.Load()
		if listed == 0 {
			if intent.Load() != 0 { // impossible, but our own claims rely on it
				intent.Store(0)
			}
			continue
		}
		if c.evicts() && !c.chains {
			c.endEviction(record, e)
		}
		if sample := listed - 1; sample >= c.samples {
			c.count(shm.Corrupt, 1)
		} else if c.reclaimSample(record, e, sample) {
			c.count(count, 1)
			claims++
		}
		intent.Store(0)
		if c.evicts() && !c.chains {
			c.seg.Victim(record, e).Store(0)
		}
		entry.Store(0)
		fault.At("reclaim.entry")
	}
	return claims
}

// reclaimSample empties a sample that an entry lists and the record's owner was filling. It returns false if the owner
// was not filling it.
func (c *Cache) reclaimSample(record uint32, entry int, sample uint64) bool {
	word := c.seg.Word(sample)
	w := shm.Word(word.Load())
	if w.State() != shm.Writing || w.Owner() != record+1 {
		return false
	}
	var keep uint64
	switch {
	case c.chains:
		c.freeChainsOfDead(record, entry, sample, w)
	case c.variable:
		keep = c.extentOfDead(record, sample, w)
	case c.seg.HasSlotTable():
		c.freeSlotsOfDead(record, sample, w)
	}
	empty := c.layout.Pack(shm.Empty, 0, c.layout.Generation(w)+1, keep)
	if !word.CompareAndSwap(uint64(w), uint64(empty)) {
		return false // a client broke the protocol
	}
	fault.At("reclaim.word")
	c.seg.Persist(sample)
	return true
}

// freeSlotsOfDead frees the slots of a dead claim: the one that the word names, and the intents of
// all entries that list the sample. Two threads of the dead client may have listed the sample. Only
// the one that claimed it has an intent, and the other's entry may come first.
func (c *Cache) freeSlotsOfDead(record uint32, sample uint64, w shm.Word) {
	free := func(place uint64) {
		if place-1 < c.slots { // 0 is none
			c.freeSlot(place-1, sample, "reclaim.slot", "reclaim.cursor")
		}
	}
	free(c.layout.Place(w))
	for e := range shm.ClaimsPerClient {
		if entry, intent := c.seg.Claim(record, e); entry.Load() == sample+1 && intent.Load() != c.layout.Place(w) {
			free(intent.Load())
		}
	}
}

// extentOfDead returns the place that the sample of a dead claim keeps. This is the extent that the
// word names. Without one it is the extent of an intent, if arena_next shows that the owner took it
// as the last extent.
func (c *Cache) extentOfDead(record uint32, sample uint64, w shm.Word) uint64 {
	if place := c.layout.Place(w); place != 0 {
		return place
	}
	a := shm.ArenaNext(c.seg.ArenaNext().Load())
	for e := range shm.ClaimsPerClient {
		entry, intent := c.seg.Claim(record, e)
		unit, units := shm.Intent(intent.Load()).Extent()
		if entry.Load() == sample+1 && units > 0 && a.Owner() == record+1 && a.Unit() == unit+units {
			length := min(units*shm.UnitBytes, shm.MaxSampleBytes)
			c.setLength(sample, length) // before the word: a named extent has its length
			return unit + 1
		}
	}
	return 0
}

// Recover reclaims the claims of dead clients and returns their number. A Set that meets such a
// claim reclaims it by itself. Errors: ErrReadOnly, ErrClosed, ErrSystem.
func (c *Cache) Recover() (int, error) {
	l, err := c.enterToWrite("recover")
	if err != nil {
		return 0, err
	}
	defer l.leave()
	for wait := (backoff{}); !c.reclaiming.CompareAndSwap(false, true); wait.sleep() {
	}
	defer c.reclaiming.Store(false)
	claims := 0
	for r := range c.seg.RecordsUsed() {
		if r == c.record || c.claimsListed(r) == 0 {
			continue
		}
		ok, err := c.locks.TryLock(r)
		if err != nil {
			return claims, err
		}
		if ok {
			claims += c.reclaimRecord(r, shm.Recovered)
			if err := c.locks.Unlock(r); err != nil {
				return claims, err
			}
		}
	}
	return claims, nil
}

// claimsListed returns how many entries of a record list a sample.
func (c *Cache) claimsListed(record uint32) (n int) {
	for e := range shm.ClaimsPerClient {
		if entry, _ := c.seg.Claim(record, e); entry.Load() != 0 {
			n++
		}
	}
	return n
}
