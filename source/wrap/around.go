package wrap

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stocached/stocached/source"
)

// gate runs reads: later, or several times, as its rules say. The end of closing ends its waits.
type gate interface {
	pass(ctx context.Context, closing <-chan struct{}, r read) (int, error)
}

// read is a Read or, with each, a ReadBlock. It is passed by value, so that a read allocates
// nothing.
type read struct {
	from source.Source
	i    int // the sample, or the block
	dst  []byte
	each func(i int, sample []byte) error
}

// do reads. For a block it returns 0 bytes.
func (r read) do(ctx context.Context) (int, error) {
	if r.each != nil {
		return 0, r.from.(source.Blocks).ReadBlock(ctx, r.i, r.each)
	}
	return r.from.Read(ctx, r.i, r.dst)
}

// bytes returns the bytes of the sample, or of all samples of the block.
func (r read) bytes() (total int64, err error) {
	first, n := r.i, 1
	if r.each != nil {
		if first, n = r.from.(source.Blocks).Block(r.i); n == 0 {
			return 0, source.ErrIndex
		}
	}
	for i := first; i < first+n; i++ {
		size, err := r.from.Size(i)
		if err != nil {
			return 0, err
		}
		total += int64(size)
	}
	return total, nil
}

// around is a source whose reads go through a gate.
type around struct {
	source.Source
	gate    gate
	once    sync.Once
	closing chan struct{} // closed by Close
}

// through returns a source whose reads go through a gate.
func through(s source.Source, g gate) source.Source {
	a := &around{Source: s, gate: g, closing: make(chan struct{})}
	if blocks, ok := s.(source.Blocks); ok {
		return aroundBlocks{a, blocks}
	}
	return a
}

// Size is part of source.Source. It may read an index.
func (a *around) Size(i int) (int, error) {
	n, err := a.Source.Size(i)
	if w, ok := a.gate.(watch); ok && err != nil {
		w.told(context.Background(), err)
	}
	return n, err
}

func (a *around) Read(ctx context.Context, i int, dst []byte) (int, error) {
	return a.gate.pass(ctx, a.closing, read{from: a.Source, i: i, dst: dst})
}

func (a *around) Close() error {
	a.once.Do(func() { close(a.closing) })
	return a.Source.Close()
}

// aroundBlocks is around for a source with blocks.
type aroundBlocks struct {
	*around
	source.Layout
}

func (a aroundBlocks) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	_, err := a.gate.pass(ctx, a.closing, read{from: a.Source, i: b, each: each})
	return err
}

func errClosing() error { return fmt.Errorf("%w while a read waited", source.ErrClosed) }

// sleep waits for d. It returns the cause of ctx, or ErrClosed, if that comes first.
func sleep(ctx context.Context, closing <-chan struct{}, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-closing:
		return errClosing()
	}
}
