package session

import (
	"math"
	"sync"
	"time"
)

// Budget is memory that all connections have together. Where more than a half is taken, a
// connection that has some may have half as much as is left, and the last quarter is for clients
// that read what they are sent. So the sum is bounded, and clients that stand still leave something
// for those that go on.
type Budget struct {
	// called a moment after a connection could not take, since no event tells when a client starts
	// to read; nil: not called
	again func()

	mu     sync.Mutex // protects what follows
	room   sync.Cond  // something was given back, or those that wait must try again
	limit  int
	used   int
	short  bool // a connection could not take, since something was given back last
	timed  bool // again is going to be called
	closed bool
}

// againPause is how long it is until again.
const againPause = 10 * time.Millisecond

// NewBudget makes a budget of limit bytes. again is called a moment after a connection could not
// take some; nil: it is not.
func NewBudget(limit int, again func()) *Budget {
	s := &Budget{limit: limit, again: again}
	s.room.L = &s.mu
	return s
}

// fits says whether a connection that has own bytes may take n more; reads says whether its client
// reads. What is larger than the limit may be taken when nothing else is. With mu held.
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

// tryAgain has all connections try again that could not take.
func (s *Budget) tryAgain() {
	s.mu.Lock()
	s.timed = false
	s.room.Broadcast()
	s.mu.Unlock()
	if s.again != nil {
		s.again()
	}
}

// hasRoom says whether take would go well.
func (s *Budget) hasRoom(own, n int, reads func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits(own, n, reads)
}

// take takes n bytes for a connection that has own of them, if it may.
func (s *Budget) take(own, n int, reads func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(own, n, reads) {
		return false
	}
	s.used += n
	return true
}

// await is take that waits until it may. false: the share was closed, or the connection is gone.
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

// force takes n bytes that cannot be refused.
func (s *Budget) force(n int) {
	s.mu.Lock()
	s.used += n
	s.mu.Unlock()
}

// give gives n bytes back, and says whether a connection could not take.
func (s *Budget) give(n int) (short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	short, s.short = s.short, false
	s.room.Broadcast()
	return short
}

// over says whether all is taken.
func (s *Budget) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used >= s.limit
}

// wake has all that wait try again.
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

// indexBytes is the memory of an index that a client asks for: its place in queues, its read, and
// its part of an answer.
const indexBytes = 192

// unlimited bounds nothing.
var unlimited = NewBudget(math.MaxInt, nil)
