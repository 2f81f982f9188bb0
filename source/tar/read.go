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

	"github.com/stocached/stocached/source"
)

// mostDigits is the longest text that is read as a number.
const mostDigits = 64

// find returns the shard of a sample and its members, one for each field. The caller holds mu.
func (d *dataset) find(i int) (s *shard, members []member, err error) {
	switch {
	case i < 0 || i >= d.info.Samples:
		return nil, nil, source.BadIndex(i, d.info.Samples)
	case d.closed:
		return nil, nil, fmt.Errorf("%w: %s", source.ErrClosed, d.shards[0].path)
	}
	k, number := d.locate(i)
	s, members = d.shards[k], make([]member, len(d.fields))
	err = guarded(func() error {
		if _, lacks := d.chosen[k].find(s.index, number, members, make([]int, len(members))); lacks >= 0 {
			return fmt.Errorf("%w: the index of %s was written to while it was in use; open the source again", source.ErrChanged, s.path)
		}
		return nil
	})
	return s, members, err
}

func (d *dataset) Size(i int) (int, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, members, err := d.find(i)
	if err != nil {
		return 0, err
	}
	_, total, err := d.info.Schema.Place(d.dims(members))
	return total, err
}

func (d *dataset) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if err := source.CheckRead(ctx, i, d.info.Samples, 0, dst); err != nil {
		return 0, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	s, members, err := d.find(i)
	if err != nil {
		return 0, err
	}
	dims := d.dims(members)
	_, total, err := d.info.Schema.Place(dims)
	if err == nil {
		err = source.CheckRead(ctx, i, d.info.Samples, total, dst)
	}
	if err != nil {
		return 0, err
	}
	spans, total, err := d.info.Schema.Begin(dst, dims)
	if err != nil {
		return 0, err
	}
	extents, numbers := make([]source.Extent, len(members)), []byte(nil)
	for k, m := range members {
		to := dst[spans[k].Start:spans[k].End]
		if d.fields[k].number {
			if m.bytes > mostDigits {
				return 0, fmt.Errorf("%w: %s: field %s has %d bytes, which are no number", source.ErrCorrupt, d.where(i), d.fields[k].name, m.bytes)
			}
			if numbers == nil {
				numbers = make([]byte, len(members)*mostDigits)
			}
			to = numbers[k*mostDigits:][:m.bytes]
		}
		extents[k] = source.Extent{Offset: m.at, Dst: to}
	}
	slices.SortFunc(extents, func(a, b source.Extent) int { return cmp.Compare(a.Offset, b.Offset) })
	if err := d.descriptors.use(s, func(f *source.File) error { return f.ReadExtents(ctx, extents) }); err != nil {
		return 0, err
	}
	for k, f := range d.fields {
		if f.number {
			text := numbers[k*mostDigits:][:members[k].bytes]
			n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%w: %s: field %s is %q, which is no int64", source.ErrCorrupt, d.where(i), f.name, text)
			}
			binary.LittleEndian.PutUint64(dst[spans[k].Start:], uint64(n))
		}
	}
	return total, nil
}

// Where names the shard, the key and the members.
func (d *dataset) Where(i int) string {
	if i < 0 || i >= d.info.Samples {
		return ""
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.where(i)
}

// where is Where for who holds mu.
func (d *dataset) where(i int) string {
	k, number := d.locate(i)
	s := d.shards[k]
	if d.closed {
		return s.path
	}
	text := s.path
	_ = guarded(func() error { // without the index, the shard is what can be said
		var parts []string
		members := make([]member, len(d.fields))
		d.chosen[k].find(s.index, number, members, make([]int, len(members)))
		for f, m := range members {
			parts = append(parts, fmt.Sprintf("%s %d bytes at %d", d.fields[f].name, m.bytes, m.at))
		}
		text = fmt.Sprintf("%s, sample %q: %s", s.path, s.index.key(number), strings.Join(parts, ", "))
		return nil
	})
	return text
}
