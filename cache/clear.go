package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// abandoned is the phase of a clear without a clearer: its clearer died, and the client that
// continued it gave up.
func abandoned(epoch uint64) shm.Phase { return shm.ClearingPhase(0, epoch) }

// Clear empties the cache. It returns Stored, or Busy when another clear is running. No client may
// claim until it ends. Clear waits for claims of live clients and reclaims those of dead ones.
// Readers discard copies that a clear has overlapped. Views show any new content of their slot.
//
// When ctx ends while live clients (this one too) hold claims, Clear returns ErrTimeout with their
// number, and the cache is as before. Other errors: ErrReadOnly, ErrClosed, ErrSystem.
func (c *Cache) Clear(ctx context.Context) (Result, error) {
	l, err := c.enterToWrite("clear")
	if err != nil {
		return Busy, err
	}
	defer l.leave()
	stop := func() error {
		if c.closed.Load() {
			return errClosed
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", shm.ErrTimeout, context.Cause(ctx))
		}
		return nil
	}
	for {
		p := shm.Phase(c.seg.Phase().Load())
		if p.Clearing() {
			done, err := c.adoptClear(p, 0)
			if err != nil || !done {
				return Busy, err
			}
			continue
		}
		if !c.clearing.CompareAndSwap(false, true) {
			return Busy, nil
		}
		mine := shm.ClearingPhase(c.owner, p.Epoch())
		if !c.seg.Phase().CompareAndSwap(uint64(p), uint64(mine)) {
			c.clearing.Store(false)
			return Busy, nil
		}
		fault.At("clear.phase")
		err := c.runClear(mine, shm.OpenPhase(p.Epoch()), stop)
		c.clearing.Store(false)
		if err != nil {
			return Busy, err
		}
		return Stored, nil
	}
}

// adoptClear finishes the clear of phase p if its clearer is dead. true: the caller loads the phase
// again. false: the clearer lives, or live clients held claims until the timeout.
func (c *Cache) adoptClear(p shm.Phase, timeout time.Duration) (bool, error) {
	if !c.clearing.CompareAndSwap(false, true) {
		return false, nil
	}
	defer c.clearing.Store(false)
	mine := shm.ClearingPhase(c.owner, p.Epoch())
	switch owner := p.Owner(); owner {
	case c.owner:
		// The owner is our number, but no goroutine of ours runs the clear. So an earlier owner of
		// the number died in it, or the clear has just ended. The CAS also repairs an impossible
		// state, which a later step would not recognise as ours.
		if !c.seg.Phase().CompareAndSwap(uint64(p), uint64(mine)) {
			return true, nil
		}
	case 0:
		if !c.seg.Phase().CompareAndSwap(uint64(p), uint64(mine)) {
			return true, nil
		}
	default:
		if ok, err := c.takePhaseOf(owner, p, mine); err != nil || !ok {
			return false, err
		}
		if shm.Phase(c.seg.Phase().Load()) != mine {
			return true, nil
		}
	}
	fault.At("clear.phase")
	deadline := time.Now().Add(timeout)
	err := c.runClear(mine, abandoned(p.Epoch()), func() error {
		if c.closed.Load() {
			return errClosed
		}
		if time.Now().After(deadline) {
			return shm.ErrTimeout
		}
		return nil
	})
	switch {
	case errors.Is(err, shm.ErrTimeout):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// takePhaseOf makes a dead clearer's phase ours. It locks the clearer's record, so that no new
// client gets its number while the phase word names it. It returns false if the clearer lives.
func (c *Cache) takePhaseOf(owner uint32, p, mine shm.Phase) (bool, error) {
	if owner > c.seg.ClientRecords {
		return false, c.corrupt("a clear by client %d, the table has %d records", owner, c.seg.ClientRecords)
	}
	if !c.reclaiming.CompareAndSwap(false, true) {
		return false, nil
	}
	defer c.reclaiming.Store(false)
	ok, err := c.locks.TryLock(owner - 1)
	if err != nil || !ok {
		return false, err
	}
	c.seg.Phase().CompareAndSwap(uint64(p), uint64(mine))
	return true, c.locks.Unlock(owner - 1)
}

// runClear does steps 2 to 4 of docs/spec/protocol.md, Clear; the phase is ours. When stop returns
// an error before all claims are gone, the phase becomes giveUp.
func (c *Cache) runClear(mine, giveUp shm.Phase, stop func() error) error {
	if err := c.drain(stop); err != nil {
		c.seg.Phase().CompareAndSwap(uint64(mine), uint64(giveUp))
		return err
	}
	fault.At("clear.drained")
	for i := range c.samples {
		word := c.seg.Word(i)
		w := shm.Word(word.Load())
		if w.State() == shm.Empty && c.layout.Place(w) == 0 {
			continue
		}
		if word.CompareAndSwap(uint64(w), uint64(c.layout.Pack(shm.Empty, 0, c.layout.Generation(w)+1, 0))) {
			fault.At("clear.index")
		}
	}
	c.space.clear()
	if c.seg.LengthsOffset != 0 {
		for i := range c.samples {
			c.seg.Items(i).Store(0)
		}
	}
	f := shm.FreeFrom(c.seg.FreeFrom().Load())
	c.seg.FreeFrom().Store(uint64(shm.NewFreeFrom(f.Seq()+1, 0)))
	c.seg.ArenaNext().Store(0)
	c.seg.PersistAll()
	fault.At("clear.cursors")
	if c.seg.Phase().CompareAndSwap(uint64(mine), uint64(shm.OpenPhase(mine.Epoch()+1))) {
		fault.At("clear.open")
	}
	return nil
}

// drain waits until it has seen each claim entry free once, and reclaims those of dead clients.
// Once is enough: a client that lists a claim after the phase has changed sees the phase and
// withdraws.
func (c *Cache) drain(stop func() error) error {
	for r := range c.seg.RecordsUsed() {
		for e := range shm.ClaimsPerClient {
			entry, _ := c.seg.Claim(r, e)
			for wait := (backoff{}); entry.Load() != 0; wait.sleep() {
				if r != c.record {
					if ok, err := c.reclaimOf(r + 1); err != nil {
						return err
					} else if ok {
						break
					}
				}
				if err := stop(); err != nil {
					n := 0
					for r := range c.seg.RecordsUsed() {
						n += c.claimsListed(r)
					}
					return fmt.Errorf("%w: %d claims of live clients stop a clear; publish or abort them, "+
						"or end those clients", err, n)
				}
			}
		}
	}
	return nil
}
