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
	buffer   []byte
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
// take for each in order on the caller's goroutine. At most twice as many batches as readers are
// under way. It returns the first error in that order, or the cause of ctx.
func inOrder(ctx context.Context, src source.Source, first, readers int, prepare func([]byte) (block.Packed, error),
	take func(p block.Packed, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	samples := src.Info().Samples
	free, todo, order := make(chan *batch, 2*readers), make(chan *batch), make(chan *batch, 2*readers)
	for range 2 * readers {
		free <- &batch{}
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil) // runs before all.Wait
	all.Go(func() {
		defer close(order)
		defer close(todo)
		for next := first; next < samples; {
			select {
			case b := <-free:
				b.assign(src, next, samples)
				next += b.n
				order <- b // the channel has capacity for all
				select {
				case todo <- b:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for range readers {
		all.Go(func() {
			for b := range todo {
				b.read(ctx, src, prepare)
				close(b.done)
			}
		})
	}
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
		free <- b
	}
	return context.Cause(ctx) // nil unless ctx has ended
}

// assign makes b a batch of the samples from first on.
func (b *batch) assign(src source.Source, first, samples int) {
	b.first, b.n, b.bytes, b.err, b.done = first, 0, 0, nil, make(chan struct{})
	for b.n < batchSamples && first+b.n < samples {
		size, err := src.Size(first + b.n)
		if b.n > 0 && (err != nil || b.bytes+size > batchBytes) {
			return // the read returns the error, in the batch that begins with this sample
		}
		b.bytes += size
		b.n++
		if err != nil {
			return
		}
	}
}

// read reads and prepares the samples of a batch.
func (b *batch) read(ctx context.Context, src source.Source, prepare func([]byte) (block.Packed, error)) {
	if cap(b.buffer) < b.bytes {
		b.buffer = make([]byte, b.bytes)
	}
	b.packed, b.sizes = b.packed[:0], b.sizes[:0]
	rest := b.buffer[:cap(b.buffer)]
	for i := b.first; i < b.first+b.n; i++ {
		n, err := src.Size(i)
		if err == nil && n > len(rest) { // the size has changed since assign
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
	if cap(b.buffer) > 4*batchBytes && b.bytes < batchBytes { // free the buffer of an exceptionally large sample
		b.buffer = nil
	}
}
