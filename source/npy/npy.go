// Package npy reads the rows of a .npy array: sample i is x[i], in one field named data. It reads
// arrays of numbers in C order, little-endian. Errors for other arrays have the line of numpy that
// converts them. It never unpickles.
package npy

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

const kind = "npy"

// Kind is in the list of package kinds.
var Kind = source.Kind{Name: kind, Doc: "the rows of a .npy array: path", Open: open}

// settings are the keys of this kind.
type settings struct {
	source.Remote `key:",squash"`

	Path string `key:"path"`
}

type rows struct{ source.Rows }

func open(ctx context.Context, s source.Settings) (source.Source, error) {
	var o settings
	if err := s.Decode(&o); err != nil {
		return nil, err
	}
	r, err := o.OpenRows(ctx, &o.Path, read)
	if err != nil {
		return nil, err
	}
	return &rows{r}, nil
}

// read reads the header of an open file.
func read(ctx context.Context, f *source.File) (r source.Rows, err error) {
	invalid := func(err error) error { return fmt.Errorf("%w: %s %w", source.ErrInvalid, f.Path, err) }
	b := make([]byte, min(f.Stamp.Bytes, prefixMax))
	if err := f.ReadAt(ctx, b, 0); err != nil {
		return r, err
	}
	start, end, err := prefix(b)
	if err != nil {
		return r, invalid(err)
	}
	b = make([]byte, min(f.Stamp.Bytes, int64(end)))
	if err := f.ReadAt(ctx, b, 0); err != nil {
		return r, err
	}
	h, err := parse(b, start, end, f.Stamp.Bytes)
	if err != nil {
		return r, invalid(err)
	}
	n, row := h.rows()
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: h.dtype, Dims: row}}, false)
	if err != nil {
		return r, invalid(fmt.Errorf("has rows that no sample can hold: %w", err))
	}
	if n > math.MaxInt {
		return r, invalid(fmt.Errorf("has %d rows", n))
	}
	about := source.Info{Kind: kind, Samples: int(n), Schema: schema}
	about.Fingerprint, about.State = source.FingerprintOf(kind, fmt.Sprint(h.dtype, h.shape, h.bytes),
		slices.Values([]source.Named{{Name: filepath.Base(f.Path), Stamp: f.Stamp}}))
	return source.Rows{Offset: int64(h.bytes), About: about}, nil
}

func (r *rows) Where(i int) string {
	if !r.Has(i) {
		return ""
	}
	return fmt.Sprintf("%s, row %d", r.File.Path, i)
}
