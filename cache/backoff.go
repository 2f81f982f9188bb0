package cache

import "time"

// backoff is a polite way to poll: 20 us at first, doubling to 1 ms, so that short waits stay short and long ones cost nothing.
type backoff struct{ next time.Duration }

func (b *backoff) sleep() {
	b.next = min(max(2*b.next, 20*time.Microsecond), time.Millisecond)
	time.Sleep(b.next)
}
