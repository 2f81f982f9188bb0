package session

import (
	"math"
	"sync"
	"time"
)

// Budget is memory that all connections share. When more than half is taken, a connection that
// holds some may have at most half of what is left. The last quarter is only for clients that read
// what they get. So the sum is bounded, and stalled clients leave memory for the others.
type Budget struct {
	// called a moment after a connection was refused memory, because no event tells when a client
	// starts to read; nil: not called
	again func()

	mu     sync.Mutex // protects the fields below
	room   sync.Cond  // memory was given back, or the waiting connections must try again
	limit  int
	used   int
	short  bool // a connection was refused memory since the last give
	timed  bool // the timer of again runs
	closed bool
}

// againPause is the time from a refusal until the call of again.
const againPause = 10 * time.Millisecond

// NewBudget makes a budget of limit bytes. Budget calls again a moment after a connection was
// refused memory; nil: it does not.
func NewBudget(limit int, again func()) *Budget {
	b := &Budget{limit: limit, again: again}
	b.room.L = &b.mu
	return b
}

// allows says whether a connection that holds own bytes may take n more. reads says whether its
// client reads. The caller holds mu.
func (b *Budget) allows(own, n int, reads func() bool) bool {
	left := b.limit - b.used
	switch {
	case b.used == 0: // more than the limit, too, or a large sample would wait forever
		return true
	case n <= left-b.limit/2: // less than half is taken
		return true
	case own > 0 && own+n > left/2:
		return false
	case n <= left-b.limit/4:
		return true
	}
	return n <= left && reads()
}

// fits is allows. If it refuses, it sees to it that connections try again. The caller holds mu.
func (b *Budget) fits(own, n int, reads func() bool) bool {
	ok := b.allows(own, n, reads)
	b.short = b.short || !ok
	if !ok && !b.timed && !b.closed {
		b.timed = true
		time.AfterFunc(againPause, b.tryAgain)
	}
	return ok
}

// tryAgain lets all refused connections try again.
func (b *Budget) tryAgain() {
	b.mu.Lock()
	b.timed = false
	b.room.Broadcast()
	b.mu.Unlock()
	if b.again != nil {
		b.again()
	}
}

// hasRoom says whether take would succeed.
func (b *Budget) hasRoom(own, n int, reads func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fits(own, n, reads)
}

// take takes n bytes for a connection that holds own bytes. false: it may not.
func (b *Budget) take(own, n int, reads func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(own, n, reads) {
		return false
	}
	b.used += n
	return true
}

// await waits until take succeeds. false: the budget was closed, or the connection is gone.
func (b *Budget) await(own, n int, reads, gone func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && !gone() {
		if b.fits(own, n, reads) {
			b.used += n
			return true
		}
		b.room.Wait()
	}
	return false
}

// force takes n bytes that must not be refused.
func (b *Budget) force(n int) {
	b.mu.Lock()
	b.used += n
	b.mu.Unlock()
}

// give gives n bytes back, and says whether a connection was refused before.
func (b *Budget) give(n int) (short bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	short, b.short = b.short, false
	b.room.Broadcast()
	return short
}

// over says whether all memory is taken.
func (b *Budget) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used >= b.limit
}

// wake makes all waiting connections try again.
func (b *Budget) wake() {
	b.mu.Lock()
	b.room.Broadcast()
	b.mu.Unlock()
}

// Close ends all waits.
func (b *Budget) Close() {
	b.mu.Lock()
	b.closed = true
	b.room.Broadcast()
	b.mu.Unlock()
}

// Resize sets the limit.
func (b *Budget) Resize(limit int) {
	b.mu.Lock()
	b.limit = limit
	b.room.Broadcast()
	b.mu.Unlock()
}

// Usage returns how much is taken, and the limit.
func (b *Budget) Usage() (used, limit int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.limit
}

// indexBytes is the memory for one index of a request: its place in queues, its read, and its part
// of an answer.
const indexBytes = 192

// unlimited is a budget without a bound.
var unlimited = NewBudget(math.MaxInt, nil)
