package client

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/stocached/stocached/shm"
)

// A variable-size sample of several fields, or of one that is not one-dimensional, begins with a header: for each field its bytes and its dims.
const (
	partRecord = 8 + 4*shm.MaxDims // bytes of a field in that header
	partAlign  = shm.UnitBytes     // of the header and of each field behind it
)

// Part is one field of one sample.
type Part struct {
	Dims []uint64 // its shape, as the field's Dims with the variable ones filled in. Join takes nil for the field's own
	Data []byte   // items in C order, little-endian
}

// Fields returns the schema: what a sample is made of.
func (c *Cache) Fields() []Field { return slices.Clone(c.seg.Header.Fields) }

// Split takes a sample apart into its fields. The parts point into sample. ErrSchema when it is no sample of this cache.
func (c *Cache) Split(sample []byte) ([]Part, error) {
	fields := c.seg.Header.Fields
	parts := make([]Part, len(fields))
	switch {
	case !c.Variable():
		if len(sample) != c.SampleBytes() {
			return nil, fmt.Errorf("%w: a sample of %d bytes, samples of this cache have %d", ErrSchema, len(sample), c.SampleBytes())
		}
		for k, f := range fields {
			parts[k] = Part{f.Dims, sample[f.Offset : f.Offset+f.Bytes : f.Offset+f.Bytes]}
		}
		return parts, nil
	case c.bare():
		item := fields[0].DType.ItemSize()
		parts[0] = Part{[]uint64{uint64(len(sample)) / item}, sample}
		return parts, c.checkPart(0, parts[0])
	}
	at := partHeader(len(fields))
	for k, f := range fields {
		if len(sample) < at {
			return nil, fmt.Errorf("%w: a sample of %d bytes ends before its field %q at %d", ErrSchema, len(sample), f.Name, at)
		}
		record := sample[k*partRecord:]
		n := binary.LittleEndian.Uint64(record)
		if n > uint64(len(sample)-at) {
			return nil, fmt.Errorf("%w: field %q of %d bytes at %d, in a sample of %d", ErrSchema, f.Name, n, at, len(sample))
		}
		p := Part{make([]uint64, len(f.Dims)), sample[at : at+int(n) : at+int(n)]}
		for d := range p.Dims {
			p.Dims[d] = uint64(binary.LittleEndian.Uint32(record[8+4*d:]))
		}
		if err := c.checkPart(k, p); err != nil {
			return nil, err
		}
		parts[k] = p
		at += roundUp(int(n), partAlign)
	}
	return parts, nil
}

// Join makes a sample of its fields, for Set. ErrSchema when their number, shapes or sizes are not those of this cache.
func (c *Cache) Join(parts []Part) ([]byte, error) {
	fields := c.seg.Header.Fields
	if len(parts) != len(fields) {
		return nil, fmt.Errorf("%w: %d fields, samples of this cache have %d", ErrSchema, len(parts), len(fields))
	}
	total := partHeader(len(fields))
	for k, p := range parts {
		if p.Dims == nil {
			p.Dims = fields[k].Dims
		}
		if err := c.checkPart(k, p); err != nil {
			return nil, err
		}
		total += roundUp(len(p.Data), partAlign)
	}
	switch {
	case !c.Variable():
		sample := make([]byte, c.SampleBytes())
		for k, f := range fields {
			copy(sample[f.Offset:], parts[k].Data)
		}
		return sample, nil
	case c.bare():
		return slices.Clone(parts[0].Data), nil
	}
	sample := make([]byte, total)
	at := partHeader(len(fields))
	for k, p := range parts {
		record := sample[k*partRecord:]
		binary.LittleEndian.PutUint64(record, uint64(len(p.Data)))
		dims := p.Dims
		if dims == nil {
			dims = fields[k].Dims
		}
		for d, n := range dims {
			binary.LittleEndian.PutUint32(record[8+4*d:], uint32(n))
		}
		copy(sample[at:], p.Data)
		at += roundUp(len(p.Data), partAlign)
	}
	return sample, nil
}

// bare says whether a variable-size sample is just the bytes of its one field.
func (c *Cache) bare() bool {
	fields := c.seg.Header.Fields
	return len(fields) == 1 && len(fields[0].Dims) == 1
}

// checkPart: ErrSchema unless a part has the shape that the schema wants, and the bytes for it.
func (c *Cache) checkPart(k int, p Part) error {
	f := c.seg.Header.Fields[k]
	ok := len(p.Dims) == len(f.Dims)
	bytes := f.DType.ItemSize()
	for d := 0; ok && d < len(f.Dims); d++ {
		high, low := bits.Mul64(bytes, p.Dims[d])
		ok = high == 0 && p.Dims[d] <= shm.MaxSampleBytes && (f.Dims[d] == VariableDim || f.Dims[d] == p.Dims[d])
		bytes = low
	}
	switch {
	case !ok:
		return fmt.Errorf("%w: field %q has shape %v, want %s", ErrSchema, f.Name, p.Dims, shape(f.Dims))
	case bytes != uint64(len(p.Data)):
		return fmt.Errorf("%w: field %q of shape %v has %d bytes, want %d of %s", ErrSchema, f.Name, p.Dims, len(p.Data), bytes, f.DType)
	}
	return nil
}

// shape prints dims, variable ones as "*".
func shape(dims []uint64) string {
	text := "["
	for k, d := range dims {
		if k > 0 {
			text += " "
		}
		if d == VariableDim {
			text += "*"
		} else {
			text += fmt.Sprint(d)
		}
	}
	return text + "]"
}

func partHeader(fields int) int { return roundUp(fields*partRecord, partAlign) }

func roundUp(n, align int) int { return (n + align - 1) / align * align }
