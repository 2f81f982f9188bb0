package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// Field is a named part of a sample.
type Field struct {
	Name  string // at most 39 bytes of UTF-8, unique in its schema
	DType DType
	// Dims are at most 8 dimensions, each at least 1. VariableDim: samples differ (variable-size
	// caches only). Empty: a single item.
	Dims []uint64
	// of the field in a fixed-size sample, a multiple of the item size. Computed; a caller's value
	// is ignored
	Offset uint64
	Bytes  uint64 // bytes of the field in a fixed-size sample. Computed
}

// layOut sets Offset and Bytes of the fields. In a fixed-size cache the fields follow each other,
// each at the next multiple of its item size. layOut returns the sample's bytes and the stride,
// which is that size rounded up to the largest item: so the payload is one dense array. In a
// variable-size cache samples differ: Offset and Bytes are 0, sampleBytes is the size of the
// smallest sample, and stride means nothing.
func layOut(fields []Field, variable bool) (sampleBytes, stride uint64, err error) {
	if len(fields) < 1 || len(fields) > MaxFields {
		return 0, 0, fmt.Errorf("%d fields are not in 1..%d", len(fields), MaxFields)
	}
	align, bare := uint64(1), len(fields) == 1 && len(fields[0].Dims) == 1
	if variable && !bare {
		sampleBytes = uint64(extentHeader(len(fields)))
	}
	for k := range fields {
		f := &fields[k]
		if err := f.check(variable); err != nil {
			return 0, 0, err
		}
		if slices.ContainsFunc(fields[:k], func(other Field) bool { return other.Name == f.Name }) {
			return 0, 0, fmt.Errorf("two fields are named %q", f.Name)
		}
		f.Offset, f.Bytes = 0, 0
		item, exact := f.DType.ItemSize(), true
		bytes := item
		for _, d := range f.Dims {
			if d == VariableDim {
				exact = false
				continue
			}
			high, low := bits.Mul64(bytes, d)
			if high != 0 || low > MaxSampleBytes {
				return 0, 0, fmt.Errorf("field %q of %s %s is larger than %d bytes", f.Name, shape(f.Dims),
					f.DType, uint64(MaxSampleBytes))
			}
			bytes = low
		}
		switch {
		case !variable:
			align = max(align, item)
			f.Offset, f.Bytes = roundUp(sampleBytes, item), bytes
			sampleBytes = f.Offset + f.Bytes
		case bare && exact:
			sampleBytes = bytes
		case exact:
			sampleBytes += roundUp(bytes, extentAlign)
		}
		if sampleBytes > MaxSampleBytes {
			return 0, 0, fmt.Errorf("the fields up to %q take %d bytes, more than %d", f.Name, sampleBytes,
				uint64(MaxSampleBytes))
		}
	}
	return sampleBytes, roundUp(sampleBytes, align), nil
}

// check says what is wrong with one field.
func (f *Field) check(variable bool) error {
	switch {
	case f.Name == "":
		return fmt.Errorf("a field has no name")
	case len(f.Name) >= FieldNameBytes || !utf8.ValidString(f.Name) || bytes.ContainsRune([]byte(f.Name), 0):
		return fmt.Errorf("field name %q is not UTF-8 of at most %d bytes", f.Name, FieldNameBytes-1)
	case f.DType >= dtypeCount:
		return fmt.Errorf("field %q has dtype %d, not in 0..%d", f.Name, f.DType, dtypeCount-1)
	case len(f.Dims) > MaxDims:
		return fmt.Errorf("field %q has %d dimensions, more than %d", f.Name, len(f.Dims), MaxDims)
	}
	for k, d := range f.Dims {
		switch {
		case d == 0:
			return fmt.Errorf("dimension %d of field %q is 0", k, f.Name)
		case d == VariableDim && !variable:
			return fmt.Errorf("dimension %d of field %q differs between samples: that needs a variable-size cache", k, f.Name)
		case d != VariableDim && d > MaxSampleBytes:
			return fmt.Errorf("dimension %d of field %q is %d, more than %d", k, f.Name, d, uint64(MaxSampleBytes))
		}
	}
	return nil
}

// encode writes the field's 128-byte record.
func (f *Field) encode(record []byte) {
	copy(record[FieldName:FieldName+FieldNameBytes], f.Name)
	binary.LittleEndian.PutUint16(record[FieldDType:], uint16(f.DType))
	binary.LittleEndian.PutUint16(record[FieldNDim:], uint16(len(f.Dims)))
	binary.LittleEndian.PutUint64(record[FieldOffset:], f.Offset)
	binary.LittleEndian.PutUint64(record[FieldSize:], f.Bytes)
	for k, d := range f.Dims {
		binary.LittleEndian.PutUint64(record[FieldDims+8*k:], d)
	}
}

// decodeField reads a field record. It checks only what compare in header.go cannot find by
// encoding the header again.
func decodeField(record []byte) (Field, error) {
	ndim := binary.LittleEndian.Uint16(record[FieldNDim:])
	if ndim > MaxDims {
		return Field{}, fmt.Errorf("a field has %d dimensions, more than %d", ndim, MaxDims)
	}
	f := Field{Name: text(record[FieldName : FieldName+FieldNameBytes]),
		DType: DType(binary.LittleEndian.Uint16(record[FieldDType:])), Dims: make([]uint64, ndim)}
	for k := range f.Dims {
		f.Dims[k] = binary.LittleEndian.Uint64(record[FieldDims+8*k:])
	}
	return f, nil
}

// text returns the string before the first NUL.
func text(padded []byte) string {
	s, _, _ := bytes.Cut(padded, []byte{0})
	return string(s)
}
