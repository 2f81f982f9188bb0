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
	s := &Budget{limit: limit, again: again}
	s.room.L = &s.mu
	return s
}

// fits says whether a connection that holds own bytes may take n more. reads says whether its
// client reads. More than the limit may be taken when nothing else is taken. The caller holds mu.
func (s *Budget) fits(own, n int, reads func() bool) bool {
	left := s.limit - s.used
	ok := s.used == 0 || n <= left-s.limit/2 || (own == 0 || own+n <= left/2) &&
		(n <= left-s.limit/4 || n <= left && reads())
	s.short = s.short || !ok
	if !ok && !s.timed && !s.closed {
		s.timed = true
		time.AfterFunc(againPause, s.tryAgain)
	}
	return ok
}

// tryAgain lets all refused connections try again.
func (s *Budget) tryAgain() {
	s.mu.Lock()
	s.timed = false
	s.room.Broadcast()
	s.mu.Unlock()
	if s.again != nil {
		s.again()
	}
}

// hasRoom says whether take would succeed.
func (s *Budget) hasRoom(own, n int, reads func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits(own, n, reads)
}

// take takes n bytes for a connection that holds own bytes. false: it may not.
func (s *Budget) take(own, n int, reads func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(own, n, reads) {
		return false
	}
	s.used += n
	return true
}

// await waits until take succeeds. false: the budget was closed, or the connection is gone.
func (s *Budget) await(own, n int, reads, gone func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && !gone() {
		if s.fits(own, n, reads) {
			s.used += n
			return true
		}
		s.room.Wait()
	}
	return false
}

// force takes n bytes that must not be refused.
func (s *Budget) force(n int) {
	s.mu.Lock()
	s.used += n
	s.mu.Unlock()
}

// give gives n bytes back, and says whether a connection was refused before.
func (s *Budget) give(n int) (short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	short, s.short = s.short, false
	s.room.Broadcast()
	return short
}

// over says whether all memory is taken.
func (s *Budget) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used >= s.limit
}

// wake makes all waiting connections try again.
func (s *Budget) wake() {
	s.mu.Lock()
	s.room.Broadcast()
	s.mu.Unlock()
}

// Close ends all waits.
func (s *Budget) Close() {
	s.mu.Lock()
	s.closed = true
	s.room.Broadcast()
	s.mu.Unlock()
}

// Resize sets the limit.
func (s *Budget) Resize(limit int) {
	s.mu.Lock()
	s.limit = limit
	s.room.Broadcast()
	s.mu.Unlock()
}

// Usage returns how much is taken, and the limit.
func (s *Budget) Usage() (used, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.limit
}

// indexBytes is the memory for one index of a request: its place in queues, its read, and its part
// of an answer.
const indexBytes = 192

// unlimited is a budget without a bound.
var unlimited = NewBudget(math.MaxInt, nil)
