// Package loader makes batches of samples in the order of an epoch, while the program works on the batches before.
//
// Hits are gathered from a cache, misses are loaded side by side and stored, or a server brings them. Samples says where samples come from (samples.go), Options what a batch is
// (options.go); one loop over batches is a run (batches.go, work.go), and the memory of a batch is reused once it is released (batch.go).
// It imports order, cache and source, and works without a server.
package loader

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/order"
)

// Loader makes batches of samples ahead of its caller, in an order that does not depend on timing. New makes it, and nothing has to be closed: all goroutines end with the loop over
// Batches. All methods may be called at any time, by any goroutine, but there is one loop at a time.
type Loader struct {
	from     Samples
	options  Options
	order    order.Order // that a state names
	pool     pool
	counters counters
	mean     atomic.Int64 // bytes of a sample, of those that differ as in the last batch; -1: not known yet

	mu      sync.Mutex // protects what follows
	running bool
	state   State
}

// State is where a loader is. It is the same on all ranks that have taken as many batches, and is all that a checkpoint has to keep: marshal it as you like.
type State struct {
	Order    order.Order // of a WeightedOrder and a MixedOrder: samples and seed
	Epoch    uint64
	Position uint64 // in the epoch: samples before it were handed out, by all ranks together
}

// ErrRunning: a loop over the loader's batches is under way.
var ErrRunning = errors.New("a loop over this loader's batches is under way; end it first, or make another loader")

// New makes a loader, at the begin of epoch 0. ErrInvalid, with every complaint about the options.
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
	l.pool.size, l.pool.most = from.bytes, o.Ahead+2 // those ahead, the caller's, and the one it had before
	l.mean.Store(int64(from.bytes))
	if from.variable {
		l.pool.size = -1
		l.mean.Store(-1)
	}
	return l, nil
}

// State returns where the loader is: after the last batch that it delivered. After the last batch of an epoch it is still in that epoch, until the loop has ended.
func (l *Loader) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Resume goes on from a state, which may be of a loader with other Ranks, Workers and sizes of batches: the ranks share what is left of the epoch. ErrInvalid when it is of another order,
// or a position that is none; ErrRunning.
func (l *Loader) Resume(s State) error {
	if s.Order != l.order {
		return fmt.Errorf("%w: the state is of the order %+v, and this loader's is %+v; make a loader with that order", order.ErrInvalid, s.Order, l.order)
	}
	if _, _, err := l.part(s); err != nil {
		return err
	}
	return l.move(s)
}

// SetEpoch goes to the begin of an epoch. Without it one epoch follows the other. ErrRunning.
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

// Len returns how many batches are left of the epoch, for this rank.
func (l *Loader) Len() int {
	_, part, err := l.part(l.State())
	if err != nil {
		return 0
	}
	return l.batches(part)
}

// part returns what this rank has to read from a state on.
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
