package main

import (
	"strconv"
	"strings"

	"github.com/stocached/stocached/shm"
)

// parseShape reads "3,224,224". ? and -1 stand for a dimension that differs between samples; "" is a single item.
func parseShape(text string) ([]uint64, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var dims []uint64
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		if part == "?" || part == "-1" {
			dims = append(dims, shm.VariableDim)
			continue
		}
		d, err := strconv.ParseUint(part, 10, 64)
		if err != nil || d == shm.VariableDim {
			return nil, usage("shape %q: %q is not a dimension; write 3,224,224, with ? for one that differs between samples (--variable)", text, part)
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
	if len(parts) < 2 || len(parts) > 3 {
		return shm.Field{}, usage("field %q is not name:dtype:shape, such as image:uint8:3,224,224 or label:int64", text)
	}
	dtype, err := shm.ParseDType(parts[1])
	if err != nil {
		return shm.Field{}, err
	}
	f := shm.Field{Name: parts[0], DType: dtype}
	if len(parts) == 3 {
		f.Dims, err = parseShape(parts[2])
	}
	return f, err
}
