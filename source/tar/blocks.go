package tar

import (
	"context"
	"fmt"
	"sort"
	"sync"

	"github.com/stocached/stocached/source"
)

// remoteDataset is a dataset whose shards are objects. Samples that lie side by side in a shard make a block,
// which one request reads: at 20 ms and 1 Gbit/s a request costs as much as 2 MiB.
type remoteDataset struct {
	*dataset
	blocks []int // the first sample of each
}

var _ source.Blocks = (*remoteDataset)(nil)

var blockBuffers = sync.Pool{New: func() any { return new([]byte) }}

// newRemote finds the blocks of a dataset. A block ends at source.MostBlock bytes, at the end of a shard, and where
// more bytes of other members follow than a request is worth.
func newRemote(ctx context.Context, d *dataset) (*remoteDataset, error) {
	r := &remoteDataset{dataset: d}
	w := d.work.Get().(*work)
	defer d.work.Put(w)
	var last *shard
	var begin, end int64
	for i := range d.info.Samples {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s, err := d.find(i, w)
		if err != nil {
			return nil, err
		}
		from, to := spanOf(w)
		if s != last || from < end || from-end > source.RemoteGap || to-begin > source.MostBlock {
			r.blocks = append(r.blocks, i)
			last, begin = s, from
		}
		end = to
	}
	return r, nil
}

// spanOf returns the part of the shard that has the members of a sample.
func spanOf(w *work) (from, to int64) {
	from, to = w.members[0].at, w.members[0].at+int64(w.members[0].bytes)
	for _, m := range w.members[1:] {
		from, to = min(from, m.at), max(to, m.at+int64(m.bytes))
	}
	return from, to
}

// Blocks is part of source.Blocks.
func (r *remoteDataset) Blocks() int { return len(r.blocks) }

// BlockOf is part of source.Blocks.
func (r *remoteDataset) BlockOf(i int) int {
	if i < 0 || i >= r.info.Samples {
		return -1
	}
	return sort.SearchInts(r.blocks, i+1) - 1
}

// Block is part of source.Blocks.
func (r *remoteDataset) Block(b int) (first, n int) {
	switch {
	case b < 0 || b >= len(r.blocks):
		return 0, 0
	case b == len(r.blocks)-1:
		return r.blocks[b], r.info.Samples - r.blocks[b]
	}
	return r.blocks[b], r.blocks[b+1] - r.blocks[b]
}

// ReadBlock is part of source.Blocks.
func (r *remoteDataset) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	first, n := r.Block(b)
	if n == 0 {
		return fmt.Errorf("%w: block %d is not in 0..%d", source.ErrIndex, b, len(r.blocks)-1)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	buffer := blockBuffers.Get().(*[]byte)
	defer blockBuffers.Put(buffer)
	begin, err := r.readSpan(ctx, first, first+n-1, buffer)
	if err != nil {
		return err
	}
	var sample []byte
	for i := first; i < first+n; i++ {
		bytes, err := r.Size(i)
		if err != nil {
			return err
		}
		if cap(sample) < bytes {
			sample = make([]byte, bytes)
		}
		if err := r.cut(ctx, i, sample[:bytes], *buffer, begin); err != nil {
			return err
		}
		if err := each(i, sample[:bytes]); err != nil { // without the lock: each may call any method
			return err
		}
	}
	return nil
}

// readSpan reads the part of a shard from the sample first to the sample last. It returns where that begins.
func (r *remoteDataset) readSpan(ctx context.Context, first, last int, buffer *[]byte) (begin int64, err error) {
	w := r.work.Get().(*work)
	defer r.work.Put(w)
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, err = r.find(last, w); err != nil {
		return 0, err
	}
	_, end := spanOf(w)
	s, err := r.find(first, w)
	if err != nil {
		return 0, err
	}
	begin, _ = spanOf(w)
	n := end - begin
	if n < 0 || n > s.index.stamp.Bytes {
		return 0, changedIndex(s)
	}
	if int64(cap(*buffer)) < n {
		*buffer = make([]byte, n)
	}
	*buffer = (*buffer)[:n]
	return begin, r.readExtents(ctx, s, []source.Extent{{Offset: begin, Dst: *buffer}})
}

// cut makes a sample of the bytes of its block.
func (r *remoteDataset) cut(ctx context.Context, i int, dst, block []byte, begin int64) error {
	w := r.work.Get().(*work)
	defer r.work.Put(w)
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, spans, _, err := r.plan(ctx, i, dst, w)
	if err != nil {
		return err
	}
	defer clear(w.extents)
	for _, e := range w.extents {
		if at := e.Offset - begin; at < 0 || at+int64(len(e.Dst)) > int64(len(block)) {
			return changedIndex(s)
		}
		copy(e.Dst, block[e.Offset-begin:])
	}
	return r.parseNumbers(i, dst, spans, w)
}
