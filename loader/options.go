package loader

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"

	"github.com/stocached/stocached/order"
)

// Options describe the batches of a Loader. BatchSize is required; the rest has defaults.
type Options struct {
	BatchSize int        // samples of a batch; the last batch may have fewer
	DropLast  bool       // leave the last batch out if it has fewer
	Order     Epochs     // order of samples; Samples of an Order may be 0: all samples. nil: from the first to the last
	Rank      uint64     // the rank reads each Ranks-th sample, starting with the Rank-th
	Ranks     uint64     // 0: 1
	Ends      order.Ends // what happens to samples that do not divide by Ranks

	// Nodes of the job, in the order of their ranks. Each global batch is dealt to the nodes whose caches
	// own its samples (docs/spec/order.md, Nodes): no rank reads what Ranks alone would give it, but the
	// samples of each global batch are the same. Ends is Pad or Drop, and Ranks may be 0. With FromCache and
	// FromServer, the cache of a node keeps what the node owns first, unless neither the cache nor Capacity says
	// how many samples it holds. In the first epoch, a server also reads what its node owns and others read.
	// nil: no affinity.
	Nodes []order.Node

	// Workers is the number of goroutines that load samples. 0: GOMAXPROCS, at least 4. FromServer
	// does not use it: each batch ahead is a request.
	Workers int
	// Threads is the number of goroutines that copy a batch's hits, fewer for small copies. 0:
	// GOMAXPROCS, at most 4.
	Threads int
	Ahead   int // batches that are made ahead, while the caller has one. 0: 2
	// AheadBytes bounds the bytes of the batches ahead, but one batch is always allowed. For
	// samples that differ in size, the last batch gives the estimate. 0: 512 MiB.
	AheadBytes int64

	owners *order.Owners // owners of samples, with Nodes
}

// Epochs is an order of samples: an Order or a WeightedOrder.
type Epochs interface {
	Epoch(number uint64) (*order.Epoch, error)
}

// defaults.
const (
	defaultAhead      = 2
	defaultAheadBytes = 512 << 20
	leastWorkers      = 4
	mostThreads       = 4
)

// complete checks all options and sets the defaults. It returns ErrInvalid.
func (o *Options) complete(samples int) error {
	var complaints []error
	complain := func(bad bool, format string, a ...any) {
		if bad {
			complaints = append(complaints, fmt.Errorf("%w: "+format, append([]any{order.ErrInvalid}, a...)...))
		}
	}
	complain(o.BatchSize < 1, "BatchSize: batches of %d samples; give at least 1", o.BatchSize)
	complain(o.Workers < 0, "Workers: %d goroutines", o.Workers)
	complain(o.Threads < 0, "Threads: %d goroutines", o.Threads)
	complain(o.Ahead < 0, "Ahead: %d batches", o.Ahead)
	complain(o.AheadBytes < 0, "AheadBytes: %d bytes", o.AheadBytes)
	switch one := o.Order.(type) {
	case nil:
		o.Order = order.Order{Samples: uint64(samples)}
	case order.Order:
		one.Samples = cmp.Or(one.Samples, uint64(samples))
		o.Order = one
	}
	e, err := o.Order.Epoch(0)
	if err == nil {
		complain(e.Samples != uint64(samples), "Order: it has %d samples, but the dataset has %d", e.Samples, samples)
		err = o.share(e)
	}
	if complaints = append(complaints, err); errors.Join(complaints...) != nil {
		return errors.Join(complaints...)
	}
	o.Ranks = max(o.Ranks, 1)
	processors := runtime.GOMAXPROCS(0)
	o.Workers = cmp.Or(o.Workers, max(processors, leastWorkers))
	o.Threads = cmp.Or(o.Threads, min(processors, mostThreads))
	o.Ahead, o.AheadBytes = cmp.Or(o.Ahead, defaultAhead), cmp.Or(o.AheadBytes, defaultAheadBytes)
	return nil
}

// share finds out who owns the samples, and checks the rank's part of them.
func (o *Options) share(e *order.Epoch) (err error) {
	if o.Nodes == nil {
		_, err = o.shard(0).Of(e)
		return err
	}
	if o.owners, err = order.NewOwners(o.Nodes, e.Samples); err != nil {
		return err
	}
	ranks := o.owners.Ranks()
	if o.Ranks = cmp.Or(o.Ranks, ranks); o.Ranks != ranks {
		return fmt.Errorf("%w: Ranks: %d, and the nodes have %d together", order.ErrInvalid, o.Ranks, ranks)
	}
	if _, err = o.shard(0).Of(e); err == nil && o.BatchSize > 0 {
		_, err = e.Dealer(o.owners, uint64(o.BatchSize), 0, o.Ends)
	}
	return err
}

// shard returns the shard that this rank reads from a position on.
func (o *Options) shard(from uint64) order.Shard {
	return order.Shard{Rank: o.Rank, Ranks: o.Ranks, From: from, Ends: o.Ends}
}
