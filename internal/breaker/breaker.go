// Package breaker leaves out what fails, for a while: a node of a tier, or the disk of a program.
package breaker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/internal/clock"
)

// Pauses of a breaker: the first, the longest, and how long it must stay closed until pauses begin
// with the first one again.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 15 * time.Second
	steady       = 10 * time.Second
)

// FullPause is how long a disk without space gets no writes.
const FullPause = time.Second

// Recent is when a failure is over if none follows, by package clock. The zero value is none.
type Recent struct{ atomic.Int64 }

// Begin notes one that lasts for a while, and says whether no other lasts.
func (r *Recent) Begin(lasts time.Duration) (first bool) {
	now := clock.Now()
	return int64(now) >= r.Swap(int64(now+lasts))
}

// Lasts says whether it lasts now.
func (r *Recent) Lasts() bool { return int64(clock.Now()) < r.Load() }

// Ended says once, after a call that succeeded, that it lasts no more.
func (r *Recent) Ended() bool {
	until := r.Load()
	return until != 0 && int64(clock.Now()) >= until && r.CompareAndSwap(until, 0)
}

// Breaker is a circuit breaker: while it is open, its node is left out. The zero value is closed.
// After each pause its owner tries whether the node is back. A server does so in the background, so
// that no sample pays for it; a program without a server by one of its calls.
type Breaker struct {
	open     atomic.Bool
	openings atomic.Uint64

	mu      sync.Mutex // protects the fields below
	because string
	since   time.Time     // when it opened or closed last
	next    time.Time     // when the owner tries again
	pause   time.Duration // the next one
}

// IsOpen says whether the node is left out.
func (b *Breaker) IsOpen() bool { return b.open.Load() }

// Openings returns how often it has opened.
func (b *Breaker) Openings() uint64 { return b.openings.Load() }

// Open opens it. false: it was open already.
func (b *Breaker) Open(because string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() {
		return false
	}
	now := time.Now()
	if b.pause == 0 || now.Sub(b.since) > steady {
		b.pause = firstPause
	}
	b.because, b.since = because, now
	b.wait(now)
	b.openings.Add(1)
	b.open.Store(true)
	return true
}

func (b *Breaker) wait(now time.Time) {
	b.next = now.Add(b.pause)
	b.pause = min(2*b.pause, longestPause)
}

// Due says whether the owner should try the node now. After true, the owner MUST call Close, Again or
// NotTried: until then nothing else is due.
func (b *Breaker) Due() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() || time.Now().Before(b.next) {
		return false
	}
	b.next = time.Now().Add(time.Hour) // until the answer
	return true
}

// Waits says whether the node is left out, and nothing is due.
func (b *Breaker) Waits() bool {
	if !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Before(b.next)
}

// Again notes that the node is not back.
func (b *Breaker) Again(because string) {
	b.mu.Lock()
	b.because = because
	b.wait(time.Now())
	b.mu.Unlock()
}

// NotTried gives the turn of Due back: the owner has learned nothing of the node.
func (b *Breaker) NotTried() {
	b.mu.Lock()
	b.next = time.Now()
	b.mu.Unlock()
}

// Close closes it, and returns for how long it was open.
func (b *Breaker) Close() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	out := now.Sub(b.since)
	b.since = now
	b.open.Store(false)
	return out
}

// State returns why the node is left out, and for how long; "": it is not.
func (b *Breaker) State() (because string, out time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		return "", 0
	}
	return b.because, time.Since(b.since)
}
