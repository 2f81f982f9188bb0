package cache

import (
	"fmt"
	"math"
	"time"

	"github.com/stocached/stocached/shm"
)

// waitAtMost is the timeout of the flag Wait: longer than any fill, and so short that a stopped
// writer does not stop a job.
const waitAtMost = time.Minute

// Set stores a sample that is not READY. It copies data; in a fixed-size cache data MUST have
// exactly the sample's size. Errors: ErrSchema (size), ErrIndex, ErrReadOnly, ErrClosed, ErrInvalid
// (flags), ErrLost, ErrCorrupt, ErrSystem.
func (c *Cache) Set(i int, data []byte, flags Flags) (Result, error) {
	parts := [1][]byte{data}
	return c.SetLoaded(i, parts[:], flags, 0)
}

// SetParts is Set of a sample that consists of the parts, one after the other.
func (c *Cache) SetParts(i int, parts [][]byte, flags Flags) (Result, error) {
	return c.SetLoaded(i, parts, flags, 0)
}

// SetLoaded is SetParts of a sample whose load took so long; 0: unknown. A cache with the policy cost
// keeps the samples that cost most; others keep the time for `stocached advise`. A negative time is ErrInvalid.
func (c *Cache) SetLoaded(i int, parts [][]byte, flags Flags, took time.Duration) (Result, error) {
	return c.set(i, parts, flags, request{took: took}, anyEpoch)
}

// SetFree is SetLoaded of one part that evicts no sample: it returns Full when no slot is free.
func (c *Cache) SetFree(i int, data []byte, took time.Duration) (Result, error) {
	parts := [1][]byte{data}
	return c.set(i, parts[:], 0, request{took: took, freeOnly: true}, anyEpoch)
}

// SetLater is the begin of a Set that SetInEpoch ends, after a wait in a queue. It calls put if a Set would try
// now, and returns Stored if put takes the sample, else Busy. epoch changes when the cache is cleared. Errors are
// those of Set.
func (c *Cache) SetLater(i int, data []byte, put func(epoch uint64) bool) (Result, error) {
	l, err := c.enterToWrite("set a sample")
	if err != nil {
		return Busy, err
	}
	defer l.leave()
	if err := c.checkFill(i, uint64(len(data)), 0); err != nil {
		return Busy, err
	}
	r := Busy
	switch _, _, ready := c.find(uint64(i)); {
	case ready:
		r = Exists
	case !c.evicts() && c.space.full(uint64(len(data))):
		r = Full
	case put(shm.Phase(c.seg.Phase().Load()).Epoch()):
		return Stored, nil
	}
	c.countResult(r, nil)
	return r, nil
}

// SetInEpoch is Set of a sample that SetLater has seen. It returns Out if the cache was cleared since.
func (c *Cache) SetInEpoch(i int, data []byte, epoch uint64) (Result, error) {
	parts := [1][]byte{data}
	return c.set(i, parts[:], 0, request{}, epoch)
}

const anyEpoch = math.MaxUint64

func (c *Cache) set(i int, parts [][]byte, flags Flags, q request, epoch uint64) (Result, error) {
	if q.took < 0 {
		return Busy, fmt.Errorf("%w: the load of sample %d took %v; give 0 if the time is unknown",
			shm.ErrInvalid, i, q.took)
	}
	for _, p := range parts {
		q.length += uint64(len(p))
	}
	l, err := c.enterToWrite("set a sample")
	if err != nil {
		return Busy, err
	}
	if err := c.checkFill(i, q.length, flags); err != nil {
		l.leave()
		return Busy, err
	}
	q.sample, q.overwrite = uint64(i), flags&Overwrite != 0
	f, r, err := c.claimOrWait(&q, flags)
	if f != nil {
		r, err = c.fill(f, parts, epoch)
		fills.Put(f)
	}
	c.countResult(r, err)
	l.leave()
	return r, err
}

// fill writes and publishes a claimed sample.
func (c *Cache) fill(f *fill, parts [][]byte, epoch uint64) (Result, error) {
	// A clear that begins from now on waits for this claim.
	if epoch != anyEpoch && shm.Phase(c.seg.Phase().Load()).Epoch() != epoch {
		return Out, c.abort(f)
	}
	if r, err := c.write(f, parts); r != Stored || err != nil {
		return r, err
	}
	return Stored, c.publish(f)
}

// Drop removes a sample that is READY, such as one whose bytes are wrong. It does nothing for others.
// Errors: ErrIndex, ErrReadOnly, ErrClosed, ErrLost, ErrCorrupt.
func (c *Cache) Drop(i int) error {
	l, err := c.enterToWrite("drop a sample")
	if err != nil {
		return err
	}
	defer l.leave()
	if err := c.checkIndex(i); err != nil {
		return err
	}
	w, m, ready := c.find(uint64(i))
	if !ready {
		return c.checkStates(uint64(i), w)
	}
	f, _, err := c.claim(&request{sample: uint64(i), length: c.length(m), overwrite: true})
	if f == nil {
		return err
	}
	err = c.abort(f)
	fills.Put(f)
	return err
}

// checkFill returns ErrIndex, ErrSchema or ErrInvalid.
func (c *Cache) checkFill(i int, length uint64, flags Flags) error {
	switch err := c.checkIndex(i); {
	case err != nil:
		return err
	case flags&^flagsKnown != 0:
		return fmt.Errorf("%w: flags %#x, known are %#x", shm.ErrInvalid, flags, flagsKnown)
	case !c.variable && length != c.sampleBytes:
		return fmt.Errorf("%w: sample %d with %d bytes, samples of this cache have %d", shm.ErrSchema, i,
			length, c.sampleBytes)
	case length > c.sampleBytes:
		return fmt.Errorf("%w: sample %d with %d bytes, samples of this cache have at most %d", shm.ErrSchema,
			i, length, c.sampleBytes)
	}
	return nil
}

// claimOrWait claims. With the flag Wait it repeats the claim while it is Busy.
func (c *Cache) claimOrWait(q *request, flags Flags) (*fill, Result, error) {
	f, r, err := c.claim(q)
	if r != Busy || err != nil || flags&Wait == 0 {
		return f, r, err
	}
	var wait backoff
	for deadline := time.Now().Add(waitAtMost); r == Busy && err == nil && time.Now().Before(deadline); {
		if wait.sleep(); c.closed.Load() {
			return nil, Busy, errClosed
		}
		f, r, err = c.claim(q)
	}
	return f, r, err
}

// Keep makes this handle store only samples that kept says: Out for others, unless the cache has them.
// nil: all samples. kept is called at the same time from any number of goroutines.
func (c *Cache) Keep(kept func(sample uint64) bool) {
	if kept == nil {
		c.kept.Store(nil)
		return
	}
	c.kept.Store(&kept)
}

// countResult counts the result of a set or claim. publish counts Stored.
func (c *Cache) countResult(r Result, err error) {
	if err != nil {
		return
	}
	switch r {
	case Exists:
		c.count(shm.Exists, 1)
	case Busy:
		c.count(shm.Busy, 1)
	case Full:
		c.count(shm.Full, 1)
	case Out:
		c.count(shm.Out, 1)
	}
}
