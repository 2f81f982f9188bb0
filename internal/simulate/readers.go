package simulate

import (
	"fmt"
	"iter"
	"math"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// turn is when a reader looks up a batch.
type turn struct{ epoch, number, reader int }

// inBatches gives the reads in the order in which they are looked up: a batch of each reader in turn.
func inBatches(epochs [][][]uint32, size int) iter.Seq2[turn, []uint32] {
	return func(yield func(turn, []uint32) bool) {
		for epoch, readers := range epochs {
			for begin, number, more := 0, 0, true; more; begin, number = begin+size, number+1 {
				more = false
				for reader, samples := range readers {
					if begin >= len(samples) {
						continue
					}
					more = true
					if !yield(turn{epoch, number, reader}, samples[begin:min(begin+size, len(samples))]) {
						return
					}
				}
			}
		}
	}
}

// future knows when each sample of a trace is read next.
type future struct {
	at    int
	after []uint32 // position of the next read of the sample at each position
	of    []uint32 // position of the next read of each sample
}

const unread = math.MaxUint32

// newFuture knows a trace and what is planned after it.
func newFuture(t *Trace, size int) *future {
	f := &future{of: make([]uint32, t.Samples)}
	last := make([]uint32, t.Samples)
	for k := range last {
		f.of[k], last[k] = unread, unread
	}
	for _, batch := range inBatches(append(t.Epochs[:len(t.Epochs):len(t.Epochs)], t.Planned), size) {
		for _, sample := range batch {
			at := uint32(len(f.after))
			if last[sample] == unread {
				f.of[sample] = at
			} else {
				f.after[last[sample]] = at
			}
			last[sample], f.after = at, append(f.after, unread)
		}
	}
	return f
}

// pass moves on after the read of a sample.
func (f *future) pass(sample uint32) {
	f.of[sample] = f.after[f.at]
	f.at++
}

// next is in how many reads a sample is read, as policy.Candidate has it.
func (f *future) next(sample uint32) uint64 {
	if f.of[sample] == unread {
		return policy.Unread
	}
	return uint64(f.of[sample]) - uint64(f.at) + 1
}

// Jobs are jobs that read one dataset side by side from one cache.
type Jobs struct {
	Order  order.Order // the seed is that of the first job; the next jobs have the next seeds
	Zipf   *float64    // s: samples are drawn with weights 1/k^s; nil: each sample is read once an epoch
	Epochs int
	Jobs   int
}

func (j Jobs) check() error {
	samples := j.Order.Samples
	switch {
	case samples < 1 || samples > math.MaxUint32:
		return fmt.Errorf("%w: %d samples are not in 1..%d", ErrInvalid, samples, uint32(math.MaxUint32))
	case j.Epochs < 1 || j.Jobs < 1:
		return fmt.Errorf("%w: %d epochs and %d jobs; there is at least 1", ErrInvalid, j.Epochs, j.Jobs)
	case float64(samples)*float64(j.Epochs)*float64(j.Jobs) > MaxAccesses:
		return fmt.Errorf("%w: %d samples, %d epochs and %d jobs are more than %d reads; simulate a part: hit rates "+
			"depend on the cached fraction, and hardly on the number of samples", ErrInvalid, samples, j.Epochs, j.Jobs,
			MaxAccesses)
	}
	return nil
}

// Trace returns what the jobs read, and as Planned one epoch more: jobs announce orders, which have no end.
func (j Jobs) Trace() (*Trace, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	t := &Trace{Samples: int(j.Order.Samples)}
	var weights *order.Weights
	if j.Zipf != nil {
		of := make([]float64, t.Samples)
		for k := range of {
			of[k] = math.Pow(float64(k+1), -*j.Zipf)
		}
		var err error
		if weights, err = order.NewWeights(of); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	for number := range uint64(j.Epochs + 1) {
		readers := make([][]uint32, j.Jobs)
		for job := range readers {
			o := j.Order
			o.Seed += uint64(job)
			e, err := o.Epoch(number)
			if weights != nil {
				e, err = order.WeightedOrder{Weights: weights, Seed: o.Seed}.Epoch(number)
			}
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			readers[job] = part(e, t.Samples, 0, 1)
		}
		t.Epochs = append(t.Epochs, readers)
	}
	t.Epochs, t.Planned = t.Epochs[:j.Epochs], t.Epochs[j.Epochs]
	return t, nil
}

// part returns so many samples of an epoch, from a position on.
func part(e *order.Epoch, samples, first, stride int) []uint32 {
	all := make([]int, samples)
	e.Fill(all, uint64(first), uint64(stride))
	return narrow(nil, all)
}

func narrow(to []uint32, samples []int) []uint32 {
	for _, sample := range samples {
		to = append(to, uint32(sample))
	}
	return to
}

// Nodes are the nodes of one job, each with a cache of its own that a server has.
type Nodes struct {
	Order    order.Order
	Epochs   int
	Nodes    int
	Names    []string // which decide who owns what; nil: node-0, node-1, ...
	Batch    int      // samples of each node in a global batch
	Room     uint64   // samples that the cache of each node holds
	Affinity bool     // global batches are dealt to the nodes that own their samples
}

// maxState bounds the memory of caches that are simulated, in samples of all nodes.
const maxState = 1 << 28

// Trace returns what the nodes read. It leaves out the last samples of an epoch, which make no whole global batch.
func (n Nodes) Trace() (*Trace, error) {
	if err := (Jobs{Order: n.Order, Epochs: n.Epochs, Jobs: 1}).check(); err != nil {
		return nil, err
	}
	samples := int(n.Order.Samples)
	switch {
	case n.Nodes < 1 || n.Names != nil && len(n.Names) != n.Nodes:
		return nil, fmt.Errorf("%w: %d nodes and %d names; give at least 1 node, and a name of each or none", ErrInvalid, n.Nodes, len(n.Names))
	case n.Batch < 1 || n.Batch > samples/n.Nodes:
		return nil, fmt.Errorf("%w: %d nodes with %d samples each in a global batch; give at least 1, and together at most the "+
			"%d samples of the dataset", ErrInvalid, n.Nodes, n.Batch, samples)
	case samples > maxState/n.Nodes:
		return nil, fmt.Errorf("%w: %d samples on %d nodes need too much memory; simulate fewer samples", ErrInvalid, samples, n.Nodes)
	}
	nodes := make([]order.Node, n.Nodes)
	for i := range nodes {
		nodes[i] = order.Node{Name: fmt.Sprint("node-", i), Ranks: 1, Capacity: min(n.Room, n.Order.Samples)}
		if n.Names != nil {
			nodes[i].Name = n.Names[i]
		}
	}
	owners, err := order.NewOwners(nodes, n.Order.Samples)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	t := &Trace{Samples: samples, kept: make([]*order.Kept, n.Nodes)}
	if n.Affinity {
		t.owners = owners
		for i, node := range nodes {
			t.kept[i] = owners.Keep(i, node.Capacity)
		}
	}
	for number := range n.Epochs {
		e, err := n.Order.Epoch(uint64(number))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		dealer, err := e.Dealer(owners, uint64(n.Batch), 0, order.Drop)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		readers, batches := make([][]uint32, n.Nodes), samples/n.Nodes/n.Batch
		for i := 0; !n.Affinity && i < n.Nodes; i++ {
			readers[i] = part(e, batches*n.Batch, i, n.Nodes)
		}
		for g := 0; n.Affinity && g < batches; g++ {
			for i, dealt := range dealer.Deal(uint64(g)) {
				readers[i] = narrow(readers[i], dealt)
			}
		}
		t.Epochs = append(t.Epochs, readers)
	}
	return t, nil
}
