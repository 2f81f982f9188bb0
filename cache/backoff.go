package cache

import "time"

// backoff is a pause between polls: 20 us at first, doubled up to 1 ms. Short waits stay short, and
// long ones cost little.
type backoff struct{ next time.Duration }

func (b *backoff) sleep() {
	b.next = min(max(2*b.next, 20*time.Microsecond), time.Millisecond)
	time.Sleep(b.next)
}
