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
		if c.retires {
			c.endEviction(record, e)
		}
		if sample := listed - 1; sample >= c.samples {
			c.count(shm.Corrupt, 1)
		} else if c.reclaimSample(record, e, sample) {
			c.count(count, 1)
			claims++
		}
		intent.Store(0)
		if c.retires {
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
	kept := c.space.freeDead(record, entry, sample, w)
	empty := c.layout.Pack(shm.Empty, 0, c.layout.Generation(w)+1, kept)
	if !word.CompareAndSwap(uint64(w), uint64(empty)) {
		return false // a client broke the protocol
	}
	fault.At("reclaim.word")
	c.seg.Persist(sample)
	return true
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
