package fill

import "slices"

// Queue has the waiters of one requester for one cache, in their order.
type Queue struct {
	prefetch bool        // no client waits for these samples: all fetches come first
	full     func() bool // the requester takes no more samples without a slot for now
	waiters  []*waiter
	listed   bool // in the ring of the round robin
}

// NewQueue makes a queue, of fetches or of prefetches. While full returns true, the filler reads
// none of its samples.
func NewQueue(prefetch bool, full func() bool) *Queue { return &Queue{prefetch: prefetch, full: full} }

// strip drops the waiters that have an answer.
func (q *Queue) strip() {
	q.waiters = slices.DeleteFunc(q.waiters, func(w *waiter) bool { return w.done })
}

// roundRobin is a ring of the queues that have waiters.
type roundRobin struct{ ring []*Queue }

// push appends the waiters that are not in the queue yet.
func (t *roundRobin) push(q *Queue, waiters ...*waiter) {
	for _, w := range waiters {
		if !w.queued {
			w.queued = true
			q.waiters = append(q.waiters, w)
		}
	}
	if !q.listed {
		q.listed = true
		t.ring = append(t.ring, q)
	}
}

// next takes one waiter from the next queue that has one and is not full; nil: there is none.
func (t *roundRobin) next() *waiter {
	for tries := len(t.ring); tries > 0; tries-- {
		q := t.ring[0]
		copy(t.ring, t.ring[1:])
		t.ring = t.ring[:len(t.ring)-1]
		for len(q.waiters) > 0 && q.waiters[0].done {
			q.waiters = q.waiters[1:]
		}
		if len(q.waiters) == 0 {
			q.listed, q.waiters = false, nil
			continue
		}
		t.ring = append(t.ring, q)
		if q.full() {
			continue
		}
		w := q.waiters[0]
		w.queued, q.waiters = false, q.waiters[1:]
		return w
	}
	return nil
}

// clear empties all queues.
func (t *roundRobin) clear() {
	for _, q := range t.ring {
		q.listed, q.waiters = false, nil
	}
	t.ring = nil
}

// len returns the number of waiters in all queues.
func (t *roundRobin) len() (n int) {
	for _, q := range t.ring {
		n += len(q.waiters)
	}
	return n
}
