package shm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// A variable-size sample begins with a header, except if its only field has one dimension. The
// header holds the bytes and the dims of each field (docs/spec/segment.md, Fields).
const (
	extentRecord = 8 + 4*MaxDims // bytes of a field in that header
	extentAlign  = UnitBytes     // alignment of that header and of each field
)

// Schema describes the samples of a dataset.
type Schema struct {
	Fields      []Field
	Variable    bool   // samples differ in size
	SampleBytes uint64 // bytes of each fixed-size sample; else of the largest, or 0 if that is unknown
}

// NewSchema copies and lays out fields. It returns ErrInvalid for invalid fields.
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
	Dims []uint64 // its shape: the field's Dims with the variable ones filled in. Join takes nil for the field's Dims
	Data []byte   // items in C order, little-endian
}

// Span says where the bytes of a field lie in a sample.
type Span struct{ Start, End int }

// Place returns where the fields of a sample with these shapes lie (nil: the field's Dims), and the
// bytes of the sample. It returns ErrSchema for shapes outside the schema.
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

// Begin computes Place for a sample in dst, and writes the header and the gaps of the sample. The
// caller writes the fields. Begin returns ErrSchema, also when dst is too short.
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

// Join makes a sample from its fields. It returns ErrSchema when their number, shapes or sizes do
// not fit the schema.
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
			return nil, fmt.Errorf("%w: field %q of shape %v has %d bytes, want %d of %s", ErrSchema,
				s.Fields[k].Name, s.dims(k, dims[k]), len(parts[k].Data),
				span.End-span.Start, s.Fields[k].DType)
		}
	}
	return sample, nil
}

// Split returns the fields of a sample. The parts point into sample. It returns ErrSchema for a
// sample that does not fit the schema.
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

// bare says whether a variable-size sample is only the bytes of its one field.
func (s *Schema) bare() bool { return len(s.Fields) == 1 && len(s.Fields[0].Dims) == 1 }

// dims returns own, or the Dims of field k if own is nil.
func (s *Schema) dims(k int, own []uint64) []uint64 {
	if own == nil {
		return s.Fields[k].Dims
	}
	return own
}

// partBytes returns the bytes of field k with a shape. It returns ErrSchema if the shape does not
// fit the schema.
func (s *Schema) partBytes(k int, own []uint64) (int, error) {
	f, dims := s.Fields[k], s.dims(k, own)
	ok := len(dims) == len(f.Dims)
	bytes := f.DType.ItemSize()
	for d := 0; ok && d < len(f.Dims); d++ {
		high, low := bits.Mul64(bytes, dims[d])
		ok = high == 0 && low <= MaxSampleBytes && dims[d] <= MaxSampleBytes &&
			(f.Dims[d] == VariableDim || f.Dims[d] == dims[d])
		bytes = low
	}
	if !ok {
		return 0, fmt.Errorf("%w: field %q has shape %v, want %s", ErrSchema, f.Name, dims, shape(f.Dims))
	}
	return int(bytes), nil
}

// checkPart returns ErrSchema unless a part has a shape of the schema and the bytes for it.
func (s *Schema) checkPart(k int, p Part) error {
	bytes, err := s.partBytes(k, p.Dims)
	if err == nil && bytes != len(p.Data) {
		err = fmt.Errorf("%w: field %q of shape %v has %d bytes, want %d of %s", ErrSchema, s.Fields[k].Name,
			p.Dims, len(p.Data), bytes, s.Fields[k].DType)
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
