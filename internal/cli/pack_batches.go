package cli

import (
	"context"
	"fmt"
	"sync"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
)

// batch is a run of samples that one goroutine reads.
type batch struct {
	first, n int
	bytes    int // bytes of all its samples, if their sizes are known
	packed   []block.Packed
	sizes    []int
	err      error // after the samples in packed
	done     chan struct{}
}

// A batch ends at this number of bytes or samples: small samples are handed over by the hundred,
// large ones one by one.
const (
	batchBytes   = 1 << 20
	batchSamples = 256
)

// inOrder reads samples from first on with several goroutines, which also prepare them. It calls
// take for each in order on the caller's goroutine. At most twice as many batches as readers wait
// for it. It returns the first error in that order, or the cause of ctx.
func inOrder(ctx context.Context, src source.Source, first, readers int, prepare func([]byte) (block.Packed, error),
	take func(p block.Packed, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	samples := src.Info().Samples
	order, turns := make(chan *batch, 2*readers), make(chan struct{}, readers)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil) // runs before all.Wait
	all.Go(func() {
		defer close(order)
		for next := first; next < samples; {
			b := newBatch(src, next, samples)
			next += b.n
			select {
			case order <- b:
			case <-ctx.Done():
				return
			}
			turns <- struct{}{} // readers end when ctx does
			all.Go(func() {
				b.read(ctx, src, prepare)
				close(b.done)
				<-turns
			})
		}
	})
	for b := range order {
		select {
		case <-b.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for k := range b.packed {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := take(b.packed[k], b.sizes[k]); err != nil {
				return err
			}
		}
		if b.err != nil {
			return b.err
		}
	}
	return context.Cause(ctx) // nil unless ctx has ended
}

// newBatch makes a batch of the samples from first on.
func newBatch(src source.Source, first, samples int) *batch {
	b := &batch{first: first, done: make(chan struct{})}
	for b.n < batchSamples && first+b.n < samples {
		size, err := src.Size(first + b.n)
		if b.n > 0 && (err != nil || b.bytes+size > batchBytes) {
			break // the read returns the error, in the batch that begins with this sample
		}
		b.bytes += size
		b.n++
		if err != nil {
			break
		}
	}
	return b
}

// read reads and prepares the samples of a batch.
func (b *batch) read(ctx context.Context, src source.Source, prepare func([]byte) (block.Packed, error)) {
	rest := make([]byte, b.bytes)
	for i := b.first; i < b.first+b.n; i++ {
		n, err := src.Size(i)
		if err == nil && n > len(rest) { // the size has grown since its batch was made
			err = fmt.Errorf("%w: its size is %d, and was less", source.ErrChanged, n)
		}
		if err == nil {
			n, err = src.Read(ctx, i, rest[:n])
		}
		var p block.Packed
		if err == nil {
			p, err = prepare(rest[:n:n])
		}
		if err != nil {
			b.err = fmt.Errorf("sample %d: %w", i, err)
			return
		}
		b.packed, b.sizes = append(b.packed, p), append(b.sizes, n)
		rest = rest[n:]
	}
}
