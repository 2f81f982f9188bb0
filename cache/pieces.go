package cache

import (
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/stocached/stocached/shm"
)

// Claim fills a sample in pieces: Cache.Claim, then WriteAt any number of times, then Publish or
// Abort. Parts that are never written are zeros, or the old bytes of the slot. A Claim belongs to
// one goroutine at a time. The caller MUST Publish or Abort it: until then the sample is Busy for
// all other clients. Close of the cache aborts it.
type Claim struct {
	c       *Cache
	f       *fill
	written uint64 // bytes written in order from the start; f.crc is their checksum
	inOrder bool   // false after a piece out of order
	open    bool
}

// Claim claims a sample of length bytes and allocates its memory. The Claim is nil unless the
// result is Stored. It returns the errors of Set.
func (c *Cache) Claim(i int, length int, flags Flags) (*Claim, Result, error) {
	l, err := c.enterToWrite("claim a sample")
	if err != nil {
		return nil, Busy, err
	}
	defer l.leave()
	if length < 0 {
		return nil, Busy, fmt.Errorf("%w: a claim of %d bytes", shm.ErrInvalid, length)
	}
	if err := c.checkFill(i, uint64(length), flags); err != nil {
		return nil, Busy, err
	}
	q := request{sample: uint64(i), length: uint64(length), overwrite: flags&Overwrite != 0}
	f, r, err := c.claimOrWait(&q, flags)
	if f != nil {
		r, err = c.allocate(f)
	}
	c.countResult(r, err)
	if r != Stored || err != nil {
		return nil, r, err
	}
	return &Claim{c: c, f: f, inOrder: true, open: true}, Stored, nil
}

// allocate allocates the memory of a claimed sample, so that parts that are never written are no
// hole: zeros, or old bytes of the place.
func (c *Cache) allocate(f *fill) (Result, error) {
	for at := uint64(0); at < f.length; {
		offset, n := c.space.run(f, at, f.length-at)
		if err := c.seg.AllocatePayload(offset, n); err != nil {
			return c.writeFailed(f, err)
		}
		at += n
	}
	c.settle(f)
	return Stored, nil
}

// Sample returns the index of the claimed sample.
func (k *Claim) Sample() int { return int(k.f.sample) }

// Len returns the length of the claimed sample in bytes.
func (k *Claim) Len() int { return int(k.f.length) }

// WriteAt writes a piece at an offset of the sample, like io.WriterAt. ErrSchema, for a piece past
// the sample's end, writes nothing and leaves the claim open. ErrFull and ErrSystem abort the
// claim. Other errors: ErrInvalid when the claim has ended, ErrClosed.
func (k *Claim) WriteAt(p []byte, offset int64) (int, error) {
	l, err := k.enter("write to")
	if err != nil {
		return 0, err
	}
	defer l.leave()
	if offset < 0 || uint64(offset) > k.f.length || uint64(len(p)) > k.f.length-uint64(offset) {
		return 0, fmt.Errorf("%w: a piece of %d bytes at %d, sample %d was claimed with %d", shm.ErrSchema,
			len(p), offset, k.f.sample, k.f.length)
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := k.c.writePayload(k.f, p, uint64(offset))
	if err != nil {
		k.open = false
		if lost := k.c.abort(k.f); lost != nil {
			return n, errors.Join(err, lost)
		}
		return n, err
	}
	if uint64(offset) != k.written {
		k.inOrder = false
	}
	if k.inOrder {
		k.f.crc = crc32.Update(k.f.crc, shm.Castagnoli, p)
		k.written += uint64(len(p))
	}
	return n, nil
}

// Publish makes the sample READY and ends the claim. Errors: ErrLost, ErrInvalid when the claim has
// ended, ErrClosed, ErrSystem.
func (k *Claim) Publish() error { return k.PublishLoaded(0) }

// PublishLoaded is Publish of a sample whose load took so long; 0: unknown. A cache with the policy
// cost lets a costlier sample have the slot of a cheaper one, and keeps one of unknown cost. A
// negative time is ErrInvalid, and leaves the claim open.
func (k *Claim) PublishLoaded(took time.Duration) error {
	if took < 0 {
		return fmt.Errorf("%w: the load of sample %d took %v; give 0 if the time is unknown", shm.ErrInvalid, k.f.sample,
			took)
	}
	l, err := k.enter("publish")
	if err != nil {
		return err
	}
	defer l.leave()
	k.open = false
	if !k.inOrder || k.written != k.f.length {
		if err := k.readBack(); err != nil {
			return errors.Join(err, k.c.abort(k.f))
		}
	}
	k.f.took = took
	k.c.loaded(k.f)
	return k.c.publish(k.f)
}

// readBack computes the checksum from the payload.
func (k *Claim) readBack() error {
	k.f.crc = 0
	buffer := make([]byte, min(k.f.length, 1<<20))
	for at := uint64(0); at < k.f.length; {
		part := buffer[:min(uint64(len(buffer)), k.f.length-at)]
		offset, n := k.c.space.run(k.f, at, uint64(len(part)))
		if err := k.c.seg.ReadPayload(part[:n], offset); err != nil {
			return err
		}
		k.f.crc = crc32.Update(k.f.crc, shm.Castagnoli, part[:n])
		at += n
	}
	return nil
}

// Abort gives the claim up. It does nothing for a claim that has ended, also by Close of the cache.
// It returns ErrLost.
func (k *Claim) Abort() error {
	l, err := k.c.enter()
	if err != nil || !k.open { // Close has aborted it
		if err == nil {
			l.leave()
		}
		return nil
	}
	defer l.leave()
	k.open = false
	return k.c.abort(k.f)
}

func (k *Claim) enter(verb string) (*stripe, error) {
	if !k.open {
		return nil, fmt.Errorf("%w: cannot %s a claim that has ended; claim sample %d again", shm.ErrInvalid,
			verb, k.f.sample)
	}
	return k.c.enter()
}
