// Package none describes a dataset that no files hold: programs load its samples, and the server shares
// what they have loaded with other programs and machines.
package none

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

const kind = "none"

// Kind is in the list of package kinds.
var Kind = source.Kind{Name: kind, Doc: "no files: programs load the samples; samples, fields, sample_bytes and fingerprint",
	Open: open}

// settings are the keys of this kind.
type settings struct {
	Samples int     `key:"samples"` // samples of the dataset
	Fields  []field `key:"fields"`  // fields of a sample
	// SampleBytes are the bytes of the fields of the largest sample, if a shape has a dimension "any".
	SampleBytes size.Bytes `key:"sample_bytes"`
	Fingerprint string     `key:"fingerprint"` // identity of dataset and transform
}

// field is one array of a sample.
type field struct {
	Name  string      `key:"name"`
	Shape []dimension `key:"shape"` // empty: a number; a dimension may be "any"
	DType string      `key:"dtype"` // default uint8
}

type programs struct{ info source.Info }

func open(_ context.Context, s source.Settings) (source.Source, error) {
	var o settings
	if err := s.Decode(&o); err != nil {
		return nil, err
	}
	schema, err := o.check()
	if err != nil {
		return nil, err
	}
	return &programs{source.Info{Kind: kind, Samples: o.Samples, Schema: schema, Fingerprint: o.Fingerprint,
		Programs: true}}, nil
}

// check returns the schema of a sample. ErrInvalid has all complaints.
func (o *settings) check() (schema shm.Schema, err error) {
	var complaints []error
	complain := func(format string, a ...any) { complaints = append(complaints, fmt.Errorf(format, a...)) }
	if o.Samples < 1 {
		complain("samples: %d; write how many the dataset has", o.Samples)
	}
	switch n := len(o.Fingerprint); {
	case n == 0:
		complain("fingerprint: it is missing; it names dataset and transform, and you change it when they change")
	case n > shm.FingerprintBytes:
		complain("fingerprint: %d bytes, at most %d", n, shm.FingerprintBytes)
	}
	if len(o.Fields) == 0 {
		complain("fields: they are missing; write one for each array of a sample, such as [{name: image, shape: [3, 224, " +
			"224], dtype: uint8}, {name: label, dtype: int64}]")
	}
	var fields []shm.Field
	variable := false // samples differ in size
	for k, f := range o.Fields {
		one := shm.Field{Name: f.Name, DType: shm.Uint8, Dims: []uint64{}}
		if f.DType != "" {
			if one.DType, err = shm.ParseDType(f.DType); err != nil {
				complain("fields[%d].dtype: %w", k, err)
			}
		}
		for _, d := range f.Shape {
			if d == 0 {
				complain("fields[%d].shape: %v; a dimension is a number from 1 on, or any", k, f.Shape)
			}
			one.Dims, variable = append(one.Dims, uint64(d)), variable || d == shm.VariableDim
		}
		fields = append(fields, one)
	}
	if variable && o.SampleBytes < 1 || !variable && o.SampleBytes != 0 {
		complain("sample_bytes: %d; give the bytes of the largest sample if a shape has a dimension any, else none", o.SampleBytes)
	}
	if len(complaints) == 0 {
		if schema, err = shm.NewSchema(fields, variable); err == nil {
			if variable {
				schema.SampleBytes = uint64(o.SampleBytes) + layoutBytes(len(fields))
			}
			return schema, nil
		}
		complain("fields: %s", strings.TrimPrefix(err.Error(), shm.ErrInvalid.Error()+": "))
	}
	return schema, fmt.Errorf("%w: %w", source.ErrInvalid, errors.Join(complaints...))
}

// layoutBytes is the most that the layout of a sample of any size adds: for each field its shape and the bytes up
// to a multiple of 64 (docs/spec/segment.md).
func layoutBytes(fields int) uint64 { return 64 + uint64(fields)*(40+64) }

// dimension of an array. any: it differs from sample to sample.
type dimension uint64

// UnmarshalText is that of encoding.TextUnmarshaler. A number needs none.
func (d *dimension) UnmarshalText(text []byte) error {
	if string(text) != "any" {
		return fmt.Errorf("%q; a dimension is a number from 1 on, or any", text)
	}
	*d = shm.VariableDim
	return nil
}

// Info is part of source.Source.
func (p *programs) Info() source.Info { return p.info }

// Size is part of source.Source. It is that of the largest sample, if samples differ.
func (p *programs) Size(i int) (int, error) {
	if i < 0 || i >= p.info.Samples {
		return 0, source.BadIndex(i, p.info.Samples)
	}
	return int(p.info.Schema.SampleBytes), nil
}

// Read returns source.ErrLoad.
func (p *programs) Read(ctx context.Context, i int, dst []byte) (int, error) {
	size, err := p.Size(i)
	if err == nil {
		err = source.CheckRead(ctx, i, p.info.Samples, size, dst)
	}
	if err == nil {
		err = source.ErrLoad
	}
	return 0, err
}

// Where is part of source.Source.
func (p *programs) Where(i int) string {
	if i < 0 || i >= p.info.Samples {
		return ""
	}
	return fmt.Sprint("sample ", i, " of programs")
}

// Close is part of source.Source.
func (p *programs) Close() error { return nil }
