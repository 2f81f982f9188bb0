package tar

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// mostDigits is the longest text of a number.
const mostDigits = 64

// work is the memory of one call.
type work struct {
	members []member // one for each field
	ranks   []int
	key     string     // the key of the sample, if samples have keys
	sizes   []uint64   // one for each field, and one for the key
	dims    [][]uint64 // sizes of each field, slices of sizes; nil for a number
	extents []source.Extent
	numbers []byte // mostDigits for each field
}

func (d *dataset) newWork() any {
	n := len(d.fields)
	all := len(d.info.Schema.Fields)
	return &work{make([]member, n), make([]int, n), "", make([]uint64, all), make([][]uint64, all),
		make([]source.Extent, n), make([]byte, n*mostDigits)}
}

// find returns the shard of a sample, and fills in the places and shapes of its members. The caller
// holds mu.
func (d *dataset) find(i int, w *work) (*shard, error) {
	switch {
	case i < 0 || i >= d.info.Samples:
		return nil, source.BadIndex(i, d.info.Samples)
	case d.closed:
		return nil, fmt.Errorf("%w: %s", source.ErrClosed, d.shards[0].path)
	}
	k, number := d.locate(i)
	s := d.shards[k]
	err := s.in.look(func() error {
		if _, lacks := d.chosen[k].find(s.index, number, w); lacks >= 0 {
			return changedIndex(s)
		}
		d.shape(s.index, number, w)
		return nil
	})
	return s, err
}

func changedIndex(s *shard) error {
	return fmt.Errorf("%w: the index of %s was changed while it was in use; open the source again", source.ErrChanged, s.path)
}

// shape fills in the shapes of the fields of sample i, by its number in the shard, and its key.
func (d *dataset) shape(x *index, i int, w *work) {
	if d.keys {
		k := len(w.members)
		w.key = x.key(i)
		w.sizes[k] = uint64(len(w.key))
		w.dims[k] = w.sizes[k : k+1 : k+1]
	}
	for k, m := range w.members {
		if w.dims[k] = nil; !d.fields[k].number {
			w.sizes[k] = uint64(m.bytes)
			w.dims[k] = w.sizes[k : k+1 : k+1]
		}
	}
}

func (d *dataset) Size(i int) (int, error) {
	w := d.work.Get().(*work)
	defer d.work.Put(w)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if _, err := d.find(i, w); err != nil {
		return 0, err
	}
	_, total, err := d.info.Schema.Place(w.dims)
	return total, err
}

func (d *dataset) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if err := source.CheckRead(ctx, i, d.info.Samples, 0, dst); err != nil {
		return 0, err
	}
	w := d.work.Get().(*work)
	defer d.work.Put(w)
	d.mu.RLock()
	defer d.mu.RUnlock()
	s, spans, total, err := d.plan(ctx, i, dst, w)
	if err != nil {
		return 0, err
	}
	err = d.readExtents(ctx, s, w.extents)
	clear(w.extents) // the pool must not keep the caller's buffer alive
	if err != nil {
		return 0, err
	}
	return total, d.parseNumbers(i, dst, spans, w)
}

// plan finds the bytes of a sample in its shard, and where they go: w.extents, in the order of the shard.
func (d *dataset) plan(ctx context.Context, i int, dst []byte, w *work) (s *shard, spans []shm.Span, total int, err error) {
	if s, err = d.find(i, w); err != nil {
		return nil, nil, 0, err
	}
	spans, total, err = d.info.Schema.Begin(dst, w.dims)
	if err := source.CheckRead(ctx, i, d.info.Samples, total, dst); err != nil {
		return nil, nil, 0, err
	}
	if err != nil {
		return nil, nil, 0, err
	}
	for k, m := range w.members {
		to := dst[spans[k].Start:spans[k].End]
		if d.fields[k].number {
			if m.bytes > mostDigits {
				return nil, nil, 0, fmt.Errorf("%w: %s: field %s has %d bytes, too many for a number", source.ErrCorrupt,
					d.where(i), d.fields[k].name, m.bytes)
			}
			to = w.numbers[k*mostDigits:][:m.bytes]
		}
		w.extents[k] = source.Extent{Offset: m.at, Dst: to}
	}
	if d.keys {
		key := spans[len(w.members)]
		copy(dst[key.Start:key.End], w.key)
	}
	slices.SortFunc(w.extents, func(a, b source.Extent) int { return cmp.Compare(a.Offset, b.Offset) })
	return s, spans, total, nil
}

// readExtents reads from a shard, and opens it if necessary.
func (d *dataset) readExtents(ctx context.Context, s *shard, extents []source.Extent) error {
	open := d.files.Get(s)
	if open == nil {
		file, err := s.open()
		if err != nil {
			return err
		}
		open = d.files.Put(s, file)
	}
	defer d.files.Release(open)
	return open.File.ReadExtents(ctx, extents)
}

// parseNumbers writes the fields that are numbers into a sample. It returns ErrCorrupt.
func (d *dataset) parseNumbers(i int, dst []byte, spans []shm.Span, w *work) error {
	for k, f := range d.fields {
		if !f.number {
			continue
		}
		text := w.numbers[k*mostDigits:][:w.members[k].bytes]
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %s: field %s is %q, which is not an int64", source.ErrCorrupt, d.where(i), f.name, text)
		}
		binary.LittleEndian.PutUint64(dst[spans[k].Start:], uint64(n))
	}
	return nil
}

// Where returns the shard, the key and the members.
func (d *dataset) Where(i int) string {
	if i < 0 || i >= d.info.Samples {
		return ""
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.where(i)
}

// where is Where for a caller that holds mu.
func (d *dataset) where(i int) string {
	k, number := d.locate(i)
	s := d.shards[k]
	if d.closed {
		return s.path
	}
	text := s.path
	_ = s.in.look(func() error { // without the index, only the shard is known
		var parts []string
		w := d.newWork().(*work)
		d.chosen[k].find(s.index, number, w)
		for f, m := range w.members {
			parts = append(parts, fmt.Sprintf("%s %d bytes at %d", d.fields[f].name, m.bytes, m.at))
		}
		text = fmt.Sprintf("%s, sample %q: %s", s.path, s.index.key(number), strings.Join(parts, ", "))
		return nil
	})
	return text
}
