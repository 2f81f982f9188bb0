package cache

import (
	"hash/crc32"

	"github.com/stocached/stocached/shm"
)

// Verification is the result of Verify.
type Verification struct {
	Checked int // READY samples
	Corrupt int // checked samples with another checksum or an impossible index record
	Bad     int // the first corrupt sample; -1: none
}

// Verify compares the READY samples first..first+n-1 with their checksums. It counts no hits, but
// counts corrupt samples. Errors: ErrIndex, ErrClosed.
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
		if c.closed.Load() { // Close waits for this call, which may take minutes
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

// bytesOf returns the bytes of a READY sample: of the payload, or of a chain a copy. It returns false for
// an impossible place.
func (c *Cache) bytesOf(w shm.Word, length uint64) ([]byte, bool) {
	offset, ok := c.locate(w, length)
	switch {
	case !ok:
		return nil, false
	case c.chains:
		bytes := make([]byte, length)
		return bytes, c.copyChain(bytes, w)
	case c.seg.OnDisk():
		bytes := make([]byte, length)
		return bytes, c.seg.ReadPayload(bytes, offset) == nil
	}
	return c.seg.Bytes(offset, length), true
}

// verifySample says whether a sample was READY, and whether it is correct.
func (c *Cache) verifySample(sample uint64) (ready, good bool) {
	record := c.indexRecord(sample)
	for range copyTries {
		w, m, ok := record.load()
		if !ok {
			return false, c.possible(w.State())
		}
		crc := c.seg.Checksum(sample, m)
		bytes, good := c.bytesOf(w, c.length(m))
		good = good && crc == crc32.Checksum(bytes, shm.Castagnoli)
		if record.unchanged(w, m) {
			return true, good
		}
	}
	return false, true // it changes too often to check
}
