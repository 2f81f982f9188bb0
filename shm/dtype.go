package shm

import "strings"

// DType is the item type of a field. The numbers are part of the format.
type DType uint16

// The item types. Bytes has the size of uint8, but is not a number (encoded images, text).
const (
	Bytes DType = iota
	Bool
	Uint8
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Uint64
	Int64
	Float16
	BFloat16
	Float32
	Float64
	Complex64
	Complex128
	dtypeCount
)

var dtypes = [dtypeCount]struct {
	name string
	size uint64
}{
	{"bytes", 1}, {"bool", 1}, {"uint8", 1}, {"int8", 1}, {"uint16", 2}, {"int16", 2}, {"uint32", 4}, {"int32",
		4}, {"uint64", 8}, {"int64", 8},
	{"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"complex64", 8}, {"complex128", 16},
}

// ItemSize returns the bytes of one item; 0 for a number that is no dtype.
func (d DType) ItemSize() uint64 {
	if d >= dtypeCount {
		return 0
	}
	return dtypes[d].size
}

// String returns numpy's name of the type. numpy has no bytes and bfloat16; their names are ours.
func (d DType) String() string {
	if d >= dtypeCount {
		return "unknown"
	}
	return dtypes[d].name
}

// ParseDType is the inverse of String. It returns ErrInvalid, with all names, for an unknown name.
func ParseDType(name string) (DType, error) {
	for d := range dtypeCount {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	names := make([]string, dtypeCount)
	for d := range dtypeCount {
		names[d] = d.String()
	}
	return 0, fail(ErrInvalid, "dtype %q is none of %s", name, strings.Join(names, ", "))
}
