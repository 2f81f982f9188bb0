package cache

import (
	"hash/crc32"

	"github.com/stocached/stocached/shm"
)

// Verification is what Verify found.
type Verification struct {
	Checked int // samples that were READY
	Corrupt int // of these, those that are not what was stored, and words that cannot be
	Bad     int // the first corrupt one; -1: none
}

// Verify compares the READY samples first..first+n-1 with their checksums. They do not count as hits; corrupt ones are counted. ErrIndex, ErrClosed.
func (c *Cache) Verify(first, n int) (Verification, error) {
	v := Verification{Bad: -1}
	l, err := c.enter()
	if err != nil {
		return v, err
	}
	defer l.leave()
	if err := c.checkRange(first, n); err != nil {
		return v, err
	}
	for i := first; i < first+n; i++ {
		if c.closed.Load() { // Close waits for us, and this may take minutes
			return v, errClosed
		}
		ready, good := c.verifySample(uint64(i))
		if ready {
			v.Checked++
		}
		if !good {
			c.count(shm.Corrupt, 1)
			if v.Corrupt++; v.Bad < 0 {
				v.Bad = i
			}
		}
	}
	return v, nil
}

// verifySample says whether a sample was READY, and whether nothing is wrong with it.
func (c *Cache) verifySample(sample uint64) (ready, good bool) {
	record := c.indexRecord(sample)
	for range copyTries {
		w, m, ok := record.load()
		if !ok {
			return false, w.State() <= shm.Ready
		}
		crc := c.seg.Checksum(sample, m)
		offset, good := c.locate(w, c.length(m))
		if good {
			good = crc == crc32.Checksum(c.seg.Bytes(offset, c.length(m)), shm.Castagnoli)
		}
		if record.unchanged(w, m) {
			return true, good
		}
	}
	return false, true // it keeps changing: not READY for long enough to be wrong
}
