// Package loader makes batches of samples in the order of an epoch, while the program works on
// earlier batches.
//
// It gathers hits from a cache. It loads misses concurrently and stores them, or asks a server for
// them. Samples says where samples come from (samples.go), and Options describe the batches
// (options.go). One loop over batches is a run (batches.go, work.go). A released batch's memory is
// reused (batch.go). The package imports order, cache and source, and works without a server.
package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/order"
)

// Loader makes batches of samples ahead of its caller, in an order that does not depend on timing.
// New makes a Loader. It needs no Close: all goroutines end with the loop over Batches. All methods
// are safe for concurrent use, but only one loop may run at a time.
type Loader struct {
	from     Samples
	options  Options
	order    order.Order // order of the state
	pool     pool
	counters counters
	mean     atomic.Int64 // mean bytes of a sample in the last batch, if sizes differ; -1: unknown yet

	mu       sync.Mutex // protects the fields below
	running  bool
	prefetch func(ctx context.Context, indices []int) // see prefetcher; nil: none, or not any more
	state    State
}

// State is the position of a loader. It is the same on all ranks that have read the same number of
// batches. A checkpoint needs nothing else; any encoding will do.
type State struct {
	Order    order.Order // a WeightedOrder's samples and seed
	Epoch    uint64
	Position uint64 // in the epoch: all samples before it were delivered, by all ranks together
}

// ErrInvalid: an option or an order makes no sense. Its text has the numbers and the next step.
var ErrInvalid = order.ErrInvalid

// ErrRunning: a loop over the loader's batches is running.
var ErrRunning = errors.New("a loop over this loader's batches is running; end it first, or make another loader")

// New makes a loader at the start of epoch 0. It returns ErrInvalid, with all complaints about the
// options.
func New(from Samples, o Options) (*Loader, error) {
	if err := from.check(); err != nil {
		return nil, err
	}
	if err := o.complete(from.samples); err != nil {
		return nil, err
	}
	epoch, err := o.Order.Epoch(0)
	if err != nil {
		return nil, err
	}
	l := &Loader{from: from, options: o, order: epoch.Order, state: State{Order: epoch.Order}}
	l.keep()
	l.prefetch = l.prefetcher()
	l.pool.size, l.pool.most = from.bytes, o.Ahead+2 // those ahead, the caller's, and its previous one
	l.mean.Store(int64(from.bytes))
	if from.variable {
		l.pool.size = -1
		l.mean.Store(-1)
	}
	return l, nil
}

// keep makes the cache of a node store what the node keeps, if it is known how many samples the cache holds.
func (l *Loader) keep() {
	o := l.options
	if o.owners == nil {
		return
	}
	node := o.owners.NodeOf(o.Rank)
	if l.from.cache == nil {
		return
	}
	// Capacity may count a disk below the cache, where copies of others have room. A server keeps the same on its disk.
	loads, holds := l.from.cache.Loads(), l.from.cache.Info().Slots
	if holds > 0 {
		holds = max(holds, loads.Below())
	}
	if capacity := cmp.Or(uint64(min(holds, l.from.samples)), o.Nodes[node].Capacity); capacity > 0 {
		loads.Keep(o.owners.Keep(node, capacity))
	}
}

// prefetcher returns what has the server of a node prefetch samples that the node owns and others read. So the epochs
// after the first one find them. nil: no nodes, or no server.
func (l *Loader) prefetcher() func(ctx context.Context, indices []int) {
	served := l.from.fetch
	if l.options.owners == nil || served == nil {
		return nil
	}
	return func(ctx context.Context, indices []int) {
		_, _ = served.Prefetch(ctx, indices) // an error of the server shows in the fetch
	}
}

// State returns the position of the loader after the last batch that it delivered. After the last
// batch of an epoch it is still in that epoch, until the loop has ended.
func (l *Loader) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Resume moves the loader to a state. The state may come from a loader with other Ranks, Workers
// and batch sizes: the ranks share the rest of the epoch. Errors: ErrInvalid for a
// state of another order or with an invalid position; ErrRunning.
func (l *Loader) Resume(s State) error {
	if s.Order != l.order {
		return fmt.Errorf("%w: the state is of the order %+v, and this loader's is %+v; make a loader with that order",
			order.ErrInvalid, s.Order, l.order)
	}
	if _, _, err := l.part(s); err != nil {
		return err
	}
	return l.move(s)
}

// SetEpoch moves to the start of an epoch. Without it epochs follow each other. It returns
// ErrRunning.
func (l *Loader) SetEpoch(number uint64) error {
	return l.move(State{Order: l.order, Epoch: number})
}

func (l *Loader) move(s State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return ErrRunning
	}
	l.state = s
	return nil
}

// Len returns how many batches of the epoch are left for this rank.
func (l *Loader) Len() int {
	_, part, err := l.part(l.State())
	if err != nil {
		return 0
	}
	return l.batches(part)
}

// part returns the part that this rank reads from a state on.
func (l *Loader) part(s State) (*order.Epoch, *order.Part, error) {
	epoch, err := l.options.Order.Epoch(s.Epoch)
	if err != nil {
		return nil, nil, err
	}
	part, err := l.options.shard(s.Position).Of(epoch)
	return epoch, part, err
}

func (l *Loader) batches(p *order.Part) int {
	n, size := p.Samples(), uint64(l.options.BatchSize)
	if !l.options.DropLast {
		n += size - 1
	}
	return int(n / size)
}
