package npy

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
)

// The format of a .npy file, as numpy.lib.format documents it:
//
//	offset  width   what
//	0       6       the bytes 0x93 "NUMPY"
//	6       2       version, major and minor: 1.0, 2.0 or 3.0
//	8       2 or 4  bytes of the header (2 in version 1), little-endian
//	10, 12  those   a Python dict of descr, fortran_order and shape: latin-1, UTF-8 in version 3
//	after that      the items
const (
	magic     = "\x93NUMPY"
	prefixMax = 12
	// numpy writes about 120 bytes for an array of numbers; a longer header is of a structured
	// type, which is refused
	headerMost = 64 << 10
)

// header holds what the header of a file says.
type header struct {
	dtype shm.DType
	shape []uint64 // at least one dimension, none of them 0
	bytes int      // before the items
}

// prefix decodes the first prefixMax bytes, or fewer if the file is shorter. It returns where the
// dict lies in the file.
func prefix(b []byte) (start, end int, err error) {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return 0, 0, fmt.Errorf("is no .npy file: it begins with %q, not %q; is it an .npz or a pickle? "+
			"numpy.save writes .npy",
			b[:min(len(b), len(magic))], magic)
	}
	if len(b) < prefixMax {
		return 0, 0, fmt.Errorf("is cut off: it has %d bytes", len(b))
	}
	var n uint32
	switch major, minor := b[6], b[7]; {
	case major == 1 && minor == 0:
		start, n = 10, uint32(binary.LittleEndian.Uint16(b[8:]))
	case (major == 2 || major == 3) && minor == 0:
		start, n = 12, binary.LittleEndian.Uint32(b[8:])
	default:
		return 0, 0, fmt.Errorf("has version %d.%d of the format; 1.0, 2.0 and 3.0 are read", major, minor)
	}
	if n > headerMost {
		return 0, 0, fmt.Errorf("has a header of %d bytes; an array of numbers has at most %d", n, headerMost)
	}
	return start, start + int(n), nil
}

// parse decodes the dict in b[start:end], and checks that a file of fileBytes fits it.
func parse(b []byte, start, end int, fileBytes int64) (header, error) {
	h := header{bytes: end}
	if fileBytes < int64(end) || len(b) < end {
		return h, fmt.Errorf("is cut off: its header ends at %d, the file at %d", end, fileBytes)
	}
	v, err := literal(string(b[start:end]))
	if err != nil {
		return h, fmt.Errorf("has a damaged header: %w", err)
	}
	d, ok := v.(dict)
	if !ok || len(d) != 3 {
		return h, fmt.Errorf("has a damaged header: expected a dict of descr, fortran_order and shape, got %.80q",
			b[start:end])
	}
	if h.dtype, err = dtype(d["descr"], h.bytes); err != nil {
		return h, err
	}
	shape, err := dims(d["shape"])
	if err != nil {
		return h, err
	}
	fortran, ok := d["fortran_order"].(bool)
	switch {
	case !ok:
		return h, fmt.Errorf("has a damaged header: fortran_order is %v", d["fortran_order"])
	case len(shape) == 0:
		return h, fmt.Errorf("holds a single item and no rows; save it with at least one dimension: " +
			"numpy.save(out, numpy.atleast_1d(x))")
	case slices.Contains(shape, 0):
		return h, fmt.Errorf("holds no items: its shape is %v", shape)
	case fortran && len(shape) > 1: // with one dimension both orders are the same
		return h, fmt.Errorf("is in Fortran order, in which the items of a row are not adjacent; convert it: " +
			"numpy.save(out, numpy.ascontiguousarray(numpy.load(path)))")
	}
	h.shape = shape
	body := h.dtype.ItemSize()
	for _, n := range shape {
		high, low := bits.Mul64(body, n)
		if high != 0 || low > 1<<62 {
			return h, fmt.Errorf("has a damaged header: shape %v is too large", shape)
		}
		body = low
	}
	if have := uint64(fileBytes - int64(end)); have != body {
		what := fmt.Sprintf("is cut off, %d bytes are missing", body-have)
		if have > body {
			what = fmt.Sprintf("has %d bytes too many", have-body)
		}
		return h, fmt.Errorf("%s: shape %v of %s takes %d bytes after the header of %d, the file has %d; save it again",
			what, shape, h.dtype, body, end, fileBytes)
	}
	return h, nil
}

// rows returns the number of rows, and the shape of a row.
func (h header) rows() (n uint64, row []uint64) { return h.shape[0], h.shape[1:] }

func dims(v any) ([]uint64, error) {
	t, ok := v.(tuple)
	if !ok {
		return nil, fmt.Errorf("has a damaged header: shape is %v, not a tuple", v)
	}
	shape := make([]uint64, len(t))
	for k, item := range t {
		n, ok := item.(int64)
		if !ok || n < 0 {
			return nil, fmt.Errorf("has a damaged header: dimension %d of the shape is %v", k, item)
		}
		shape[k] = uint64(n)
	}
	return shape, nil
}

// dtypes maps numpy's names, without the byte order, to our item types. numpy has no bfloat16.
var dtypes = map[string]shm.DType{
	"b1": shm.Bool, "u1": shm.Uint8, "i1": shm.Int8, "u2": shm.Uint16, "i2": shm.Int16,
	"u4": shm.Uint32, "i4": shm.Int32, "u8": shm.Uint64, "i8": shm.Int64,
	"f2": shm.Float16, "f4": shm.Float32, "f8": shm.Float64, "c8": shm.Complex64, "c16": shm.Complex128,
}

// dtype decodes a descr. Errors say what to do in numpy.
func dtype(descr any, headerBytes int) (shm.DType, error) {
	name, ok := descr.(string)
	switch descr.(type) {
	case string:
	case list, tuple:
		return 0, fmt.Errorf("holds records of several fields; save each field by itself: " +
			`numpy.save(out, numpy.load(path)["name"])`)
	default:
		ok = false
	}
	if !ok || len(name) < 2 {
		return 0, fmt.Errorf("has a damaged header: descr is %v", descr)
	}
	order, item := name[0], name[1:]
	d, known := dtypes[item]
	switch {
	case known && (order == '<' || d.ItemSize() == 1 && strings.IndexByte("<>|=", order) >= 0):
		return d, nil
	case known && order == '>':
		return 0, fmt.Errorf("is big-endian (%s); convert it: x = numpy.load(path); numpy.save(out, "+
			"x.astype(x.dtype.newbyteorder(\"<\")))", name)
	case item[0] == 'O':
		return 0, fmt.Errorf("holds Python objects, which are pickled, and unpickling runs code of the file; " +
			"save an array of numbers instead")
	case item == "V2":
		return 0, fmt.Errorf("holds items without a type (%s): .npy has no bfloat16; if the items are bfloat16, "+
			"open the file with kind: raw, dtype: bfloat16, offset: %d and the shape of a row",
			name, headerBytes)
	case item[0] == 'V':
		return 0, fmt.Errorf("holds items without a type (%s); save a view of them as numbers: "+
			"numpy.save(out, x.view(numpy.uint8))", name)
	case item[0] == 'M' || item[0] == 'm':
		return 0, fmt.Errorf("holds times (%s); save them as numbers: numpy.save(out, "+
			"numpy.load(path).view(numpy.int64))", name)
	case item[0] == 'S' || item[0] == 'U' || item[0] == 'a':
		return 0, fmt.Errorf("holds strings (%s); save numbers: for texts, one file each and kind: dir", name)
	case item == "f16" || item == "c32" || item == "f12" || item == "c24":
		return 0, fmt.Errorf("holds items of %s bytes (%s), which differ between machines; save doubles: "+
			"x.astype(numpy.float64) or numpy.complex128",
			item[1:], name)
	}
	return 0, fmt.Errorf("holds items of an unknown type %q; known are <, and one of %s", name, names())
}

// names lists numpy's names of the item types, in the order of our numbers.
func names() string {
	names := make([]string, 0, len(dtypes))
	for name := range dtypes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(dtypes[a]) - int(dtypes[b]) })
	return strings.Join(names, ", ")
}
