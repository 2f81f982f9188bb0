package loader

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/order"
)

// Batches goes over what is left of the epoch, in its order. After the end of an epoch the loader is at the start of the next one. After a loop that was left early, it is after the
// last batch that it delivered, and another loop goes on there. While the caller has a batch, others are made (Options.Ahead): the hits of each are gathered at once, and its misses are loaded side
// by side, so that a slow sample delays no other batch's loads, and nothing comes out of order.
//
// An error comes in place of its batch, after the batches before it, and ends the loop: a *SampleError, what a server could not bring (such as *client.FetchError),
// the cause of ctx, errors of Gather, ErrRunning. The loader is then where it was before that batch. When Load panics, the loop does, with the *SampleError that has its stack.
//
// However the loop ends, all goroutines have ended with it; it waits for loads under way, whose contexts have ended.
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
	ctx      context.Context // of loads; ends with the loop
	cancel   context.CancelFunc
	epoch    *order.Epoch
	part     *order.Part
	batches  int
	all      sync.WaitGroup // its goroutines
	made     chan *buffer   // in order; closed after the last one
	current  *buffer        // that is waited for; nil: none
	queue    queue
	stepFrom time.Time // the caller has its batch since; zero: it has had none
	taken    uint64    // samples that were handed out

	ahead atomic.Int64  // batches that are being made, or wait to be taken
	space chan struct{} // has something in it when there may be room for another
}

// begin begins a loop. ErrRunning.
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
	l.running = true
	r := &run{l: l, epoch: epoch, part: part, batches: l.batches(part), made: make(chan *buffer, l.options.Ahead), space: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.queue.wake.L = &r.queue.mu
	r.all.Go(r.plan)
	workers := l.options.Workers
	if l.from.fetch != nil {
		workers = l.options.Ahead // whose requests are under way side by side
	}
	for range workers {
		r.all.Go(r.work)
	}
	return r, nil
}

// end ends the loop: it waits for all that was begun.
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

// next returns the next batch; nil: there is none.
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
		if ctx.Err() != nil { // which ended the planner
			return nil, context.Cause(ctx)
		}
		r.l.turn(r.epoch.Number())
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
	r.l.handedOut(b, r.part.Position(r.taken))
	return b, nil
}

// handedOut takes notice of a batch that the caller gets.
func (l *Loader) handedOut(b *buffer, position uint64) {
	l.mu.Lock()
	l.state.Position = position
	l.mu.Unlock()
	l.counters.batch(b)
}

// turn goes to the next epoch.
func (l *Loader) turn(epoch uint64) {
	l.mu.Lock()
	l.state.Epoch, l.state.Position = epoch+1, 0
	l.mu.Unlock()
}

// giveBack gives back a buffer that was not delivered.
func (b *buffer) giveBack() {
	select {
	case <-b.done:
	default:
	}
	b.pool.put(b)
}

// plan makes one batch after the other, as far as the caller lets it.
func (r *run) plan() {
	defer close(r.made)
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
		r.part.Fill(b.indices, first)
		b.real = int(min(max(r.part.Real(), first)-first, n))
		began := time.Now()
		err := r.gather(b)
		r.l.counters.gather.add(time.Since(began))
		if err != nil {
			b.misses = b.misses[:0]
			b.fail(0, err)
		}
		b.left.Store(int64(len(b.misses)) + 1)
		if len(b.misses) > 0 {
			r.announce(b)
			r.queue.push(b)
		}
		b.settle(1)
		r.made <- b // which has room for all that may be ahead
		if err != nil {
			return
		}
	}
}

// reserve waits until there is room ahead for another batch. false: the loop has ended.
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

// mostAhead is how many batches may be ahead now.
func (l *Loader) mostAhead() int64 {
	mean := l.mean.Load()
	if mean < 0 {
		return 1 // which tells
	}
	return max(min(int64(l.options.Ahead), l.options.AheadBytes/max(mean*int64(l.options.BatchSize), 1)), 1)
}

// release makes room for another batch when one is taken.
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

// gather copies what is in the cache, and lists what is not.
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
		b.hits, err = c.Gather(b.indices, cache.Whole, b.rows, b.size, b.hit, r.l.options.Threads)
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
func (r *run) gatherPacked(c Cache, b *buffer) (int, error) {
	if _, err := c.Lengths(b.indices, b.lengths); err != nil {
		return 0, err
	}
	total := uint64(0)
	for k, n := range b.lengths {
		b.offsets[k] = total
		if n != cache.Miss {
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

// announce tells a source that reads ahead what is about to be read, and lists it for a server.
func (r *run) announce(b *buffer) {
	if r.l.from.soon == nil && r.l.from.fetch == nil {
		return
	}
	b.wanted = resized(b.wanted, len(b.misses))
	for n, k := range b.misses {
		b.wanted[n] = b.indices[k]
	}
	if r.l.from.soon != nil {
		r.l.from.soon(b.wanted)
	}
}
