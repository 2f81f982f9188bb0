package cli

import (
	"strconv"
	"strings"

	"github.com/stocached/stocached/shm"
)

// parseShape reads "3,224,224". ? and -1 stand for a dimension that differs between samples.
func parseShape(text string) ([]uint64, error) {
	var dims []uint64
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		if part == "?" || part == "-1" {
			dims = append(dims, shm.VariableDim)
			continue
		}
		d, err := strconv.ParseUint(part, 10, 64)
		if err != nil || d == shm.VariableDim {
			return nil, usage("shape %q: %q is not a dimension; write 3,224,224, with ? for one that differs "+
				"between samples (--variable)", text, part)
		}
		dims = append(dims, d)
	}
	return dims, nil
}

// formatShape is the inverse of parseShape.
func formatShape(dims []uint64) string {
	parts := make([]string, len(dims))
	for k, d := range dims {
		if parts[k] = strconv.FormatUint(d, 10); d == shm.VariableDim {
			parts[k] = "?"
		}
	}
	return strings.Join(parts, ",")
}

// parseField reads "image:uint8:3,224,224" and, for a single item, "label:int64".
func parseField(text string) (shm.Field, error) {
	parts := strings.Split(text, ":")
	switch len(parts) {
	case 2:
		dtype, err := shm.ParseDType(parts[1])
		return shm.Field{Name: parts[0], DType: dtype}, err
	case 3:
		return arrayField(parts[0], parts[1], parts[2])
	}
	return shm.Field{}, usage("field %q is not name:dtype:shape, such as image:uint8:3,224,224 or label:int64", text)
}

// arrayField is a field that has a shape.
func arrayField(name, dtype, shape string) (f shm.Field, err error) {
	f.Name = name
	if f.DType, err = shm.ParseDType(dtype); err == nil {
		f.Dims, err = parseShape(shape)
	}
	return f, err
}
