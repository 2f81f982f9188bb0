// Package writequeue writes samples in the background: to a tier of a server, or to a disk cache of a program.
package writequeue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Queue.
type Options[K any] struct {
	Limit   int64 // bytes of the samples that wait or are being written
	Writers int   // how many goroutines write at the same time
	Spare   int   // bytes after a sample, up to its capacity, that Write may change
	// Write writes a sample, which is valid until it returns. ctx ends when the queue does.
	Write func(ctx context.Context, key K, sample []byte)
}

// Queue has the samples that wait to be written. All methods are safe for concurrent use.
type Queue[K any] struct {
	o       Options[K]
	dropped atomic.Uint64
	buffers sync.Pool // holds *[]byte
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	wake    sync.Cond
	waiting []write[K]
	pending int           // samples that wait or are being written
	bytes   int64         // sum over the queue
	written chan struct{} // closed when none is pending; nil: no Flush waits
	closed  bool
}

type write[K any] struct {
	key    K
	sample *[]byte
}

// New makes a queue, whose goroutines Close ends.
func New[K any](o Options[K]) *Queue[K] {
	q := &Queue[K]{o: o}
	q.wake.L = &q.mu
	q.ctx, q.stop = context.WithCancel(context.Background())
	for range o.Writers {
		q.running.Go(q.write)
	}
	return q
}

// Dropped returns how many samples were not written: Put found the queue full, or Close had no time for them.
func (q *Queue[K]) Dropped() uint64 { return q.dropped.Load() }

// Bytes returns the bytes of the samples that wait or are being written.
func (q *Queue[K]) Bytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// Put copies a sample into the queue. false: it is full or closed, and the sample is counted. An empty queue takes
// a sample of any size.
func (q *Queue[K]) Put(key K, sample []byte) bool {
	n := int64(len(sample))
	q.mu.Lock()
	full := q.closed || q.pending > 0 && q.bytes+n > q.o.Limit
	if !full {
		q.bytes += n
		q.pending++
	}
	q.mu.Unlock()
	if full {
		q.dropped.Add(1)
		return false
	}
	b, _ := q.buffers.Get().(*[]byte)
	if b == nil || cap(*b) < len(sample)+q.o.Spare {
		made := make([]byte, 0, len(sample)+q.o.Spare)
		b = &made
	}
	*b = append((*b)[:0], sample...)
	q.mu.Lock()
	q.waiting = append(q.waiting, write[K]{key, b})
	q.wake.Broadcast()
	q.mu.Unlock()
	return true
}

// write writes samples, in its own goroutine, until the queue is closed and empty.
func (q *Queue[K]) write() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if len(q.waiting) == 0 {
			if q.closed && q.pending == 0 || q.ctx.Err() != nil {
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
			q.o.Write(q.ctx, w.key, *w.sample)
		}
		q.buffers.Put(w.sample)
		q.mu.Lock()
		q.bytes -= n
		if q.pending--; q.pending > 0 {
			continue
		}
		if q.written != nil {
			close(q.written)
			q.written = nil
		}
		if q.closed {
			q.wake.Broadcast()
		}
	}
}

// Flush waits until no sample waits or is being written. It returns the cause of ctx.
func (q *Queue[K]) Flush(ctx context.Context) error {
	q.mu.Lock()
	if q.pending == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.written == nil {
		q.written = make(chan struct{})
	}
	written := q.written
	q.mu.Unlock()
	select {
	case <-written:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close writes what waits, for at most so long, and drops the rest. It waits for writes that have begun.
func (q *Queue[K]) Close(wait time.Duration) {
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
