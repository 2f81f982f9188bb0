// Package raw reads fixed-size records that lie one after the other in a file.
package raw

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

const kind = "raw"

// Kind is in the list of package kinds.
var Kind = source.Kind{Name: kind, Doc: "fixed-size records in a file: path, shape and dtype, or sample_bytes",
	Open: open}

// settings are the keys of this kind.
type settings struct {
	source.Remote `key:",squash"`

	Path        string `key:"path"`
	SampleBytes int    `key:"sample_bytes"` // bytes of a record, instead of shape and dtype
	Shape       []int  `key:"shape"`
	DType       string `key:"dtype"`  // default uint8
	Offset      int64  `key:"offset"` // bytes before the first record
}

type records struct{ source.Rows }

func open(ctx context.Context, s source.Settings) (source.Source, error) {
	var o settings
	if err := s.Decode(&o); err != nil {
		return nil, err
	}
	schema, err := o.schema()
	if err != nil {
		return nil, err
	}
	r, err := o.OpenRows(ctx, &o.Path, func(_ context.Context, f *source.File) (source.Rows, error) {
		bytes, body := int64(schema.SampleBytes), f.Stamp.Bytes-o.Offset
		if o.Offset < 0 || body < bytes || body%bytes != 0 {
			return source.Rows{}, fmt.Errorf("%w: %s has %d bytes, which is not a whole number of records of %d bytes after the "+
				"first %d; check shape, dtype and offset", source.ErrInvalid, o.Path, f.Stamp.Bytes, bytes, o.Offset)
		}
		about := source.Info{Kind: kind, Samples: int(body / bytes), Schema: schema}
		about.Fingerprint, about.State = source.FingerprintOf(kind, fmt.Sprint(bytes, o.Offset, o.Shape, o.DType),
			slices.Values([]source.Named{{Name: filepath.Base(o.Path), Stamp: f.Stamp}}))
		return source.Rows{Offset: o.Offset, About: about}, nil
	})
	if err != nil {
		return nil, err
	}
	return &records{r}, nil
}

func (o *settings) schema() (shm.Schema, error) {
	field := shm.Field{Name: "data", DType: shm.Uint8}
	switch {
	case (o.SampleBytes != 0) == (o.Shape != nil):
		return shm.Schema{}, fmt.Errorf("%w: give either sample_bytes or shape", source.ErrInvalid)
	case o.Shape != nil && len(o.Shape) == 0:
		return shm.Schema{}, fmt.Errorf("%w: shape is empty; write one such as [3, 224, 224], or [1] for a single item",
			source.ErrInvalid)
	case o.SampleBytes < 0:
		return shm.Schema{}, fmt.Errorf("%w: sample_bytes is %d", source.ErrInvalid, o.SampleBytes)
	case o.SampleBytes > 0 && o.DType != "":
		return shm.Schema{}, fmt.Errorf("%w: sample_bytes means plain bytes; give shape with dtype", source.ErrInvalid)
	case o.SampleBytes > 0:
		field.Dims = []uint64{uint64(o.SampleBytes)}
	}
	if o.DType != "" {
		dtype, err := shm.ParseDType(o.DType)
		if err != nil {
			return shm.Schema{}, fmt.Errorf("%w: %w", source.ErrInvalid, err)
		}
		field.DType = dtype
	}
	for _, d := range o.Shape {
		if d < 1 {
			return shm.Schema{}, fmt.Errorf("%w: shape %v has a dimension below 1", source.ErrInvalid, o.Shape)
		}
		field.Dims = append(field.Dims, uint64(d))
	}
	schema, err := shm.NewSchema([]shm.Field{field}, false)
	if err != nil {
		key := map[bool]string{true: "shape", false: "sample_bytes"}[o.Shape != nil]
		err = fmt.Errorf("%w: %s: %s", source.ErrInvalid, key, strings.TrimPrefix(err.Error(), shm.ErrInvalid.Error()+": "))
	}
	return schema, err
}

func (r *records) Where(i int) string {
	if !r.Has(i) {
		return ""
	}
	return fmt.Sprintf("%s, %d bytes at %d", r.File.Path, r.About.Schema.SampleBytes, r.At(i))
}
