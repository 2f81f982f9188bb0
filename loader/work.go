package loader

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// queue gives misses to workers, those of the first batch first.
type queue struct {
	mu      sync.Mutex // protects the fields below
	wake    sync.Cond
	batches []*buffer // with misses that no worker has taken
	closed  bool
}

func (q *queue) push(b *buffer) {
	q.mu.Lock()
	q.batches = append(q.batches, b)
	q.wake.Broadcast()
	q.mu.Unlock()
}

// close ends all waits: take returns false from then on.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.wake.Broadcast()
	q.mu.Unlock()
}

// take returns a batch and the number n of a miss, or with whole takes all its misses. It returns
// false after close.
func (q *queue) take(whole bool) (b *buffer, n int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.batches) == 0 && !q.closed {
		q.wake.Wait()
	}
	if q.closed {
		return nil, 0, false
	}
	b = q.batches[0]
	n = b.taken
	if b.taken++; whole {
		b.taken = len(b.misses)
	}
	if b.taken == len(b.misses) {
		last := copy(q.batches, q.batches[1:])
		q.batches[last] = nil
		q.batches = q.batches[:last]
	}
	return b, n, true
}

// work loads misses until the loop ends.
func (r *run) work() {
	over := false
	defer func() {
		if !over { // Load has ended this goroutine
			r.all.Go(r.work)
		}
	}()
	w := worker{run: r}
	for {
		b, n, ok := r.queue.take(r.l.from.fetch != nil)
		switch {
		case !ok:
			over = true
			return
		case r.l.from.fetch != nil:
			w.fetch(b)
		default:
			w.load(b, b.misses[n])
		}
	}
}

// worker is one goroutine that loads samples.
type worker struct {
	*run
	scratch []byte // for a sample of unknown size
}

// load loads the k-th sample of a batch.
func (w *worker) load(b *buffer, k int) {
	defer b.settle(1)
	if b.failedBefore(k) {
		return
	}
	began, returned := time.Now(), false
	defer func() {
		w.l.counters.load.add(time.Since(began))
		if !returned {
			b.fail(k, w.sampleError(b, k, &panicked{recover(), debug.Stack()}))
		}
	}()
	err := w.put(b, k)
	returned = true
	if err != nil {
		b.fail(k, w.sampleError(b, k, err))
	}
}

// put loads the k-th sample, and stores it in its place and in the cache.
func (w *worker) put(b *buffer, k int) error {
	i := b.indices[k]
	dst := w.scratch[:0]
	if b.size >= 0 {
		dst = b.sample(k)[:0]
	}
	data, took, err := w.l.from.loads(w.ctx, i, dst)
	if err != nil {
		return err
	}
	switch {
	case b.size < 0:
		copy(b.place(k, len(data)), data)
		if n := len(data); n > cap(w.scratch) && n <= memoryBytes { // our own memory: data may be Load's
			w.scratch = make([]byte, 0, n)
		}
	case len(data) != b.size:
		return fmt.Errorf("Load returned %d bytes, samples have %d", len(data), b.size)
	case b.size > 0 && &data[0] != &b.sample(k)[0]: // Load returned memory of its own
		copy(b.sample(k), data)
	}
	return w.l.from.store(i, b.sample(k), took)
}

// sampleError returns the error of a sample.
func (w *worker) sampleError(b *buffer, k int, err error) error {
	e := &SampleError{Index: b.indices[k], Position: uint64(k), Err: err}
	if w.l.from.where != nil {
		e.Where = w.l.from.where(e.Index)
	}
	return e
}

// fetch asks a server for the misses of a batch.
func (w *worker) fetch(b *buffer) {
	defer b.settle(len(b.misses))
	began := time.Now()
	err := w.l.from.fetch.FetchMisses(w.ctx, b.missIndices,
		func(n, bytes int) []byte { return b.place(b.misses[n], bytes) })
	w.l.counters.load.add(time.Since(began))
	if err != nil {
		b.fail(b.misses[0], err)
	}
}

// panicked is the error of a Load that did not return.
type panicked struct {
	value any // nil: Load has ended its goroutine
	stack []byte
}

func (p *panicked) Error() string {
	if p.value == nil {
		return "Load has ended its goroutine (runtime.Goexit)"
	}
	return fmt.Sprintf("panic: %v\n\n%s", p.value, p.stack)
}

// Unwrap returns the panic's value if that is an error.
func (p *panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// panicIf panics in the goroutine of the loop if Load panicked in another one.
func panicIf(err error) {
	if p := (*panicked)(nil); errors.As(err, &p) && p.value != nil {
		panic(err)
	}
}
