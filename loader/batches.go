package loader

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/order"
)

// Batches iterates over the rest of the epoch, in its order. After the end of an epoch the loader
// is at the start of the next one. After a loop that was left early, the next loop continues after
// the last batch that was delivered. While the caller has a batch, the loader makes others
// (Options.Ahead). It gathers the hits of each at once, and loads the misses of several batches
// concurrently. So a slow sample delays no load of another batch. Batches always come in order.
//
// An error comes in place of its batch, after the earlier batches, and ends the loop: a
// *SampleError, an error of a server (such as *client.FetchError), the cause of ctx, errors of
// Gather, ErrRunning. The loader is then at the start of that batch. When Load panics, the loop
// panics with the *SampleError that has the stack of Load.
//
// When the loop ends, all its goroutines have ended. It cancels the contexts of inflight loads and
// waits for them.
func (l *Loader) Batches(ctx context.Context) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		r, err := l.begin(ctx)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		defer r.end()
		for {
			b, err := r.next(ctx)
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if b == nil {
				return
			}
			if !yield(Batch{b, b.lease.Load()}, nil) {
				return
			}
			r.stepFrom = time.Now()
		}
	}
}

// run is one loop over batches.
type run struct {
	l        *Loader
	ctx      context.Context // context of loads; ends with the loop
	cancel   context.CancelFunc
	epoch    *order.Epoch
	part     *order.Part
	dealer   *order.Dealer // dealer of batches to nodes; nil: part says what this rank reads
	owned    chan []int    // for Loader.prefetch, in the first epoch; nil: not
	asked    chan struct{} // closed after the last of those; nil with owned
	batches  int
	all      sync.WaitGroup // goroutines of the loop
	made     chan *buffer   // in order; closed after the last batch
	current  *buffer        // the batch that next waits for; nil: none
	queue    queue
	stepFrom time.Time // when the caller got its batch; zero: it has had none
	taken    uint64    // samples that were delivered

	ahead atomic.Int64  // batches that the loader makes or has ready
	space chan struct{} // receives a value when another batch may be made
}

// begin begins a loop. It returns ErrRunning.
func (l *Loader) begin(ctx context.Context) (*run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return nil, ErrRunning
	}
	epoch, part, err := l.part(l.state)
	if err != nil {
		return nil, err
	}
	var dealer *order.Dealer
	if o := l.options; o.owners != nil {
		if dealer, err = epoch.Dealer(o.owners, uint64(o.BatchSize), l.state.Position, o.Ends); err != nil {
			return nil, err
		}
	}
	l.running = true
	r := &run{l: l, epoch: epoch, part: part, dealer: dealer, batches: l.batches(part),
		made: make(chan *buffer, l.options.Ahead), space: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.queue.wake.L = &r.queue.mu
	if prefetch := l.prefetch; prefetch != nil {
		r.owned, r.asked = make(chan []int, l.options.Ahead), make(chan struct{})
		r.all.Go(func() {
			defer close(r.asked)
			for indices := range r.owned {
				prefetch(r.ctx, indices)
			}
		})
	}
	r.all.Go(r.plan)
	workers := l.options.Workers
	if l.from.fetch != nil {
		workers = l.options.Ahead // each request is inflight in one worker
	}
	for range workers {
		r.all.Go(r.work)
	}
	return r, nil
}

// end ends the loop: it waits for all goroutines, and returns all buffers to the pool.
func (r *run) end() {
	r.cancel()
	r.queue.close()
	r.all.Wait()
	if r.current != nil {
		r.current.giveBack()
	}
	for b := range r.made { // the planner has closed it
		b.giveBack()
	}
	l := r.l
	l.mu.Lock()
	l.running = false
	l.mu.Unlock()
}

// next returns the next batch, or nil at the end of the epoch.
func (r *run) next(ctx context.Context) (*buffer, error) {
	began := time.Now()
	if !r.stepFrom.IsZero() {
		r.l.counters.step.add(began.Sub(r.stepFrom))
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var b *buffer
	select {
	case b = <-r.made:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if b == nil {
		if ctx.Err() != nil { // the end of ctx has ended the planner
			return nil, context.Cause(ctx)
		}
		if r.owned != nil { // end cancels what the server was not asked for yet
			select {
			case <-r.asked:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		r.l.beginEpoch(r.epoch.Number() + 1)
		return nil, nil
	}
	r.current = b
	select {
	case <-b.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.l.counters.wait.add(time.Since(began))
	if b.err != nil {
		panicIf(b.err)
		return nil, b.err
	}
	r.current = nil
	r.release(b)
	r.taken += uint64(len(b.indices))
	r.l.delivered(b, r.part.Position(r.taken))
	return b, nil
}

// delivered notes that the caller gets a batch.
func (l *Loader) delivered(b *buffer, position uint64) {
	l.mu.Lock()
	l.state.Position = position
	l.mu.Unlock()
	l.counters.batch(b)
}

// beginEpoch moves to the start of an epoch.
func (l *Loader) beginEpoch(epoch uint64) {
	l.mu.Lock()
	l.state.Epoch, l.state.Position, l.prefetch = epoch, 0, nil
	l.mu.Unlock()
}

// giveBack returns a buffer that was not delivered to the pool.
func (b *buffer) giveBack() {
	select {
	case <-b.done:
	default:
	}
	b.pool.put(b)
}

// plan makes one batch after the other, at most as many as may be ahead of the caller.
func (r *run) plan() {
	defer close(r.made)
	if r.owned != nil {
		defer close(r.owned)
	}
	size := uint64(r.l.options.BatchSize)
	for k := range uint64(r.batches) {
		first := k * size
		n := min(size, r.part.Samples()-first)
		if !r.reserve() {
			return
		}
		b := r.l.pool.get()
		b.epoch = r.epoch.Number()
		b.begin(int(n))
		if r.dealer != nil {
			_, b.real = r.dealer.Fill(b.indices, k, r.l.options.Rank)
			r.prefetchOwned(k)
		} else {
			r.part.Fill(b.indices, first)
			b.real = int(min(max(r.part.Real(), first)-first, n))
		}
		began := time.Now()
		err := r.gather(b)
		r.l.counters.gather.add(time.Since(began))
		if err != nil {
			b.misses = b.misses[:0]
			b.fail(0, err)
		}
		b.left.Store(int64(len(b.misses)) + 1)
		if len(b.misses) > 0 {
			r.listMisses(b)
			r.queue.push(b)
		}
		b.settle(1)
		r.made <- b // made has capacity for all batches that may be ahead
		if err != nil {
			return
		}
	}
}

// prefetchOwned passes on what the node owns of a batch and others read.
func (r *run) prefetchOwned(batch uint64) {
	if r.owned == nil {
		return
	}
	select {
	case r.owned <- r.dealer.Elsewhere(batch, r.l.options.Rank):
	case <-r.ctx.Done():
	}
}

// reserve waits until one more batch may be made. It returns false when the loop has ended.
func (r *run) reserve() bool {
	for r.ctx.Err() == nil {
		if r.ahead.Load() < r.l.mostAhead() {
			r.ahead.Add(1)
			return true
		}
		select {
		case <-r.space:
		case <-r.ctx.Done():
		}
	}
	return false
}

// mostAhead returns how many batches may be ahead now.
func (l *Loader) mostAhead() int64 {
	mean := l.mean.Load()
	if mean < 0 {
		return 1 // the first batch tells the size of samples
	}
	return max(min(int64(l.options.Ahead), l.options.AheadBytes/max(mean*int64(l.options.BatchSize), 1)), 1)
}

// release lets the planner make another batch after one was delivered.
func (r *run) release(b *buffer) {
	if r.l.from.variable {
		r.l.mean.Store(b.bytes() / int64(len(b.indices)))
	}
	r.ahead.Add(-1)
	select {
	case r.space <- struct{}{}:
	default:
	}
}

// gather copies the hits and lists the misses.
func (r *run) gather(b *buffer) error {
	c := r.l.from.cache
	if c == nil {
		for k := range b.indices {
			b.misses = append(b.misses, k)
		}
		return nil
	}
	var err error
	if b.size >= 0 {
		b.hits, err = c.Gather(b.indices, b.rows, client.GatherOptions{Stride: b.size, Hit: b.hit, Threads: r.l.options.Threads})
	} else {
		b.hits, err = r.gatherPacked(c, b)
	}
	if err != nil || b.hits == len(b.indices) {
		return err
	}
	for k, hit := range b.hit {
		if !hit {
			b.misses = append(b.misses, k)
		}
	}
	return nil
}

// gatherPacked gathers samples of any size.
func (r *run) gatherPacked(c *client.Cache, b *buffer) (int, error) {
	if _, err := c.Lengths(b.indices, b.lengths); err != nil {
		return 0, err
	}
	total := uint64(0)
	for k, n := range b.lengths {
		b.offsets[k] = total
		if n != client.Miss {
			total += n
		}
	}
	b.packed = resized(b.packed, int(total))
	hits, err := c.GatherPacked(b.indices, b.packed, b.offsets, b.lengths, b.hit, r.l.options.Threads)
	for k, hit := range b.hit {
		b.samples[k] = nil
		if hit {
			end := b.offsets[k] + b.lengths[k]
			b.samples[k] = b.packed[b.offsets[k]:end:end]
		}
	}
	return hits, err
}

// listMisses lists the indices of the misses for a server, and for a source that reads ahead, which begins.
func (r *run) listMisses(b *buffer) {
	if r.l.from.ahead == nil && r.l.from.fetch == nil {
		return
	}
	b.missIndices = resized(b.missIndices, len(b.misses))
	for n, k := range b.misses {
		b.missIndices[n] = b.indices[k]
	}
	if r.l.from.ahead != nil {
		r.l.from.ahead(b.missIndices)
	}
}
