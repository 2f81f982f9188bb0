package shm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// A variable-size sample of several fields, or of one that is not one-dimensional, begins with a header: for each field its bytes and its dims
// (docs/spec/segment.md, Fields).
const (
	extentRecord = 8 + 4*MaxDims // bytes of a field in that header
	extentAlign  = UnitBytes     // of the header and of each field behind it
)

// Schema is what the samples of a dataset are made of.
type Schema struct {
	Fields      []Field
	Variable    bool   // samples differ in size
	SampleBytes uint64 // of every sample of fixed size; else of the largest, or 0 where that is not known
}

// NewSchema lays out fields, which it copies. ErrInvalid when they cannot be.
func NewSchema(fields []Field, variable bool) (Schema, error) {
	s := Schema{Fields: slices.Clone(fields), Variable: variable}
	bytes, _, err := layOut(s.Fields, variable)
	if err != nil {
		return Schema{}, fail(ErrInvalid, "%v", err)
	}
	if !variable {
		s.SampleBytes = bytes
	}
	return s, nil
}

// Part is one field of one sample.
type Part struct {
	Dims []uint64 // its shape, as the field's Dims with the variable ones filled in. Join takes nil for the field's own
	Data []byte   // items in C order, little-endian
}

// Span is where the bytes of a field lie in a sample.
type Span struct{ Start, End int }

// Place returns where the fields of a sample lie whose shapes are dims (nil: the field's own), and the bytes of all. ErrSchema when these are not
// shapes of the schema.
func (s *Schema) Place(dims [][]uint64) ([]Span, int, error) {
	if len(dims) != len(s.Fields) {
		return nil, 0, fmt.Errorf("%w: %d fields, samples have %d", ErrSchema, len(dims), len(s.Fields))
	}
	spans, at := make([]Span, len(dims)), 0
	if s.Variable && !s.bare() {
		at = extentHeader(len(dims))
	}
	for k, d := range dims {
		n, err := s.partBytes(k, d)
		if err != nil {
			return nil, 0, err
		}
		switch {
		case !s.Variable:
			at = int(s.Fields[k].Offset)
			spans[k] = Span{at, at + n}
		case s.bare():
			spans[k] = Span{0, n}
			at = n
		default:
			spans[k] = Span{at, at + n}
			at += int(roundUp(uint64(n), extentAlign))
		}
	}
	if !s.Variable {
		at = int(s.SampleBytes)
	}
	if at > MaxSampleBytes {
		return nil, 0, fmt.Errorf("%w: a sample of %d bytes, none has more than %d", ErrSchema, at, uint64(MaxSampleBytes))
	}
	return spans, at, nil
}

// Begin is Place of the sample in dst, whose header and gaps it writes: what is left to write are the fields. ErrSchema when dst is too short as well.
func (s *Schema) Begin(dst []byte, dims [][]uint64) ([]Span, int, error) {
	spans, total, err := s.Place(dims)
	switch {
	case err != nil:
		return nil, 0, err
	case total > len(dst):
		return nil, total, fmt.Errorf("%w: a sample of %d bytes, the buffer has %d", ErrSchema, total, len(dst))
	}
	end := 0
	if s.Variable && !s.bare() {
		end = extentHeader(len(dims))
		clear(dst[:end])
		for k, span := range spans {
			record := dst[k*extentRecord:]
			binary.LittleEndian.PutUint64(record, uint64(span.End-span.Start))
			for d, n := range s.dims(k, dims[k]) {
				binary.LittleEndian.PutUint32(record[8+4*d:], uint32(n))
			}
		}
	}
	for _, span := range spans {
		clear(dst[end:span.Start])
		end = span.End
	}
	clear(dst[end:total])
	return spans, total, nil
}

// Join makes a sample of its fields. ErrSchema when their number, shapes or sizes are not those of the schema.
func (s *Schema) Join(parts []Part) ([]byte, error) {
	dims := make([][]uint64, len(parts))
	for k, p := range parts {
		dims[k] = p.Dims
	}
	_, total, err := s.Place(dims)
	if err != nil {
		return nil, err
	}
	sample := make([]byte, total)
	spans, _, err := s.Begin(sample, dims)
	if err != nil {
		return nil, err
	}
	for k, span := range spans {
		if n := copy(sample[span.Start:span.End], parts[k].Data); n != len(parts[k].Data) || n != span.End-span.Start {
			return nil, fmt.Errorf("%w: field %q of shape %v has %d bytes, want %d of %s", ErrSchema, s.Fields[k].Name, s.dims(k, dims[k]), len(parts[k].Data),
				span.End-span.Start, s.Fields[k].DType)
		}
	}
	return sample, nil
}

// Split takes a sample apart into its fields. The parts point into sample. ErrSchema when it is no sample of the schema.
func (s *Schema) Split(sample []byte) ([]Part, error) {
	parts := make([]Part, len(s.Fields))
	switch {
	case !s.Variable:
		if uint64(len(sample)) != s.SampleBytes {
			return nil, fmt.Errorf("%w: a sample of %d bytes, samples have %d", ErrSchema, len(sample), s.SampleBytes)
		}
		for k, f := range s.Fields {
			parts[k] = Part{f.Dims, sample[f.Offset : f.Offset+f.Bytes : f.Offset+f.Bytes]}
		}
		return parts, nil
	case s.bare():
		parts[0] = Part{[]uint64{uint64(len(sample)) / s.Fields[0].DType.ItemSize()}, sample}
		return parts, s.checkPart(0, parts[0])
	}
	at := extentHeader(len(s.Fields))
	for k, f := range s.Fields {
		if len(sample) < at {
			return nil, fmt.Errorf("%w: a sample of %d bytes ends before its field %q at %d", ErrSchema, len(sample), f.Name, at)
		}
		record := sample[k*extentRecord:]
		n := binary.LittleEndian.Uint64(record)
		if n > uint64(len(sample)-at) {
			return nil, fmt.Errorf("%w: field %q of %d bytes at %d, in a sample of %d", ErrSchema, f.Name, n, at, len(sample))
		}
		p := Part{make([]uint64, len(f.Dims)), sample[at : at+int(n) : at+int(n)]}
		for d := range p.Dims {
			p.Dims[d] = uint64(binary.LittleEndian.Uint32(record[8+4*d:]))
		}
		if err := s.checkPart(k, p); err != nil {
			return nil, err
		}
		parts[k] = p
		at += int(roundUp(n, extentAlign))
	}
	return parts, nil
}

// bare says whether a variable-size sample is just the bytes of its one field.
func (s *Schema) bare() bool { return len(s.Fields) == 1 && len(s.Fields[0].Dims) == 1 }

// dims are the shape of field k: own is nil where that is the field's.
func (s *Schema) dims(k int, own []uint64) []uint64 {
	if own == nil {
		return s.Fields[k].Dims
	}
	return own
}

// partBytes returns the bytes of field k with a shape. ErrSchema unless the schema has it.
func (s *Schema) partBytes(k int, own []uint64) (int, error) {
	f, dims := s.Fields[k], s.dims(k, own)
	ok := len(dims) == len(f.Dims)
	bytes := f.DType.ItemSize()
	for d := 0; ok && d < len(f.Dims); d++ {
		high, low := bits.Mul64(bytes, dims[d])
		ok = high == 0 && low <= MaxSampleBytes && dims[d] <= MaxSampleBytes && (f.Dims[d] == VariableDim || f.Dims[d] == dims[d])
		bytes = low
	}
	if !ok {
		return 0, fmt.Errorf("%w: field %q has shape %v, want %s", ErrSchema, f.Name, dims, shape(f.Dims))
	}
	return int(bytes), nil
}

// checkPart: ErrSchema unless a part has the shape that the schema wants, and the bytes for it.
func (s *Schema) checkPart(k int, p Part) error {
	bytes, err := s.partBytes(k, p.Dims)
	if err == nil && bytes != len(p.Data) {
		err = fmt.Errorf("%w: field %q of shape %v has %d bytes, want %d of %s", ErrSchema, s.Fields[k].Name, p.Dims, len(p.Data), bytes, s.Fields[k].DType)
	}
	return err
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

func extentHeader(fields int) int { return int(roundUp(uint64(fields*extentRecord), extentAlign)) }
