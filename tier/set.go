package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Set has the tiers of one cache, from fast to slow.
type Set struct {
	queues []*queue // one for each tier
	once   sync.Once
	closed error
	shared Shared // the last tier that is shared; nil: none
}

// flushTime is how long Close writes what is in a queue. Tests shorten it.
var flushTime = 5 * time.Second

// writers of a queue: a tier may send what several write at a time with one call.
const writers = 4

// New makes a set of tiers. memory bounds the queue of each. The set owns the tiers.
func New(tiers []Tier, memory []int64) *Set {
	s := &Set{}
	for k, t := range tiers {
		s.queues = append(s.queues, newQueue(t, memory[k]))
		if shared, ok := t.(Shared); ok {
			s.shared = shared
		}
	}
	return s
}

// Status describes all tiers.
func (s *Set) Status() (all []Status) {
	for _, q := range s.queues {
		one := q.tier.Status()
		one.Dropped += q.dropped.Load()
		q.mu.Lock()
		one.Queued = q.bytes
		q.mu.Unlock()
		all = append(all, one)
	}
	return all
}

// Problems returns a line for each node that is left out, and for each note of a tier.
func (s *Set) Problems() (lines []string) {
	for k, one := range s.Status() {
		where := fmt.Sprintf("tiers[%d] (%s)", k, one.Kind)
		for _, n := range one.Nodes {
			if n.LeftOut {
				lines = append(lines, fmt.Sprintf("%s: %s is left out for %.0f s: %s", where, n.Address, n.Seconds,
					n.Because))
			}
		}
		for _, note := range one.Notes {
			lines = append(lines, where+": "+note)
		}
	}
	return lines
}

// put writes a sample to the first n tiers, in the background, and says whether one takes it.
func (s *Set) put(n, i int, sample []byte) (taken bool) {
	for _, q := range s.queues[:n] {
		if q.tier.Accepts(i, len(sample)) && q.put(i, sample) {
			taken = true
		} else if shared, ok := q.tier.(Shared); ok {
			shared.Release(i)
		}
	}
	return taken
}

// Close writes what is in the queues, for a bounded time, and closes the tiers.
func (s *Set) Close() error {
	s.once.Do(func() {
		var all sync.WaitGroup
		errs := make([]error, len(s.queues))
		for k, q := range s.queues {
			all.Go(func() {
				q.close(flushTime)
				errs[k] = q.tier.Close()
			})
		}
		all.Wait()
		s.closed = errors.Join(errs...)
	})
	return s.closed
}

// queue has the samples that wait to be written to a tier.
type queue struct {
	tier    Tier
	limit   int64
	dropped atomic.Uint64
	buffers sync.Pool // of *[]byte
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	wake    sync.Cond
	waiting []write
	bytes   int64 // of those that wait and those that are being written
	closed  bool
}

type write struct {
	i      int
	sample *[]byte
}

func newQueue(t Tier, limit int64) *queue {
	q := &queue{tier: t, limit: limit}
	q.wake.L = &q.mu
	q.ctx, q.stop = context.WithCancel(context.Background())
	for range writers {
		q.running.Go(q.write)
	}
	return q
}

// put copies a sample into the queue. false: it is full or closed, and the sample is counted.
func (q *queue) put(i int, sample []byte) bool {
	n := int64(len(sample))
	q.mu.Lock()
	full := q.closed || q.bytes+n > q.limit
	if !full {
		q.bytes += n
	}
	q.mu.Unlock()
	if full {
		q.dropped.Add(1)
		return false
	}
	b, _ := q.buffers.Get().(*[]byte)
	if b == nil || cap(*b) < len(sample)+Spare {
		made := make([]byte, 0, len(sample)+Spare)
		b = &made
	}
	*b = append((*b)[:0], sample...)
	q.mu.Lock()
	q.waiting = append(q.waiting, write{i, b})
	q.wake.Broadcast()
	q.mu.Unlock()
	return true
}

// write writes samples, in its own goroutine, until the queue is closed and empty.
func (q *queue) write() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if len(q.waiting) == 0 {
			if q.closed && q.bytes == 0 || q.ctx.Err() != nil {
				return
			}
			q.wake.Wait()
			continue
		}
		w := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		n := int64(len(*w.sample))
		if q.ctx.Err() != nil {
			q.dropped.Add(1)
		} else {
			q.tier.Put(q.ctx, w.i, *w.sample)
		}
		q.buffers.Put(w.sample)
		q.mu.Lock()
		if q.bytes -= n; q.closed && q.bytes == 0 {
			q.wake.Broadcast()
		}
	}
}

// close writes what waits for at most wait, and drops the rest.
func (q *queue) close(wait time.Duration) {
	q.mu.Lock()
	q.closed = true
	q.wake.Broadcast()
	q.mu.Unlock()
	timer := time.AfterFunc(wait, func() {
		q.stop()
		q.mu.Lock()
		q.wake.Broadcast()
		q.mu.Unlock()
	})
	q.running.Wait()
	timer.Stop()
	q.stop()
}
