package kinds_test

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
)

// Ensure, on every kind of server, that a dataset is written into a bucket: that it is no dataset before the end,
// that a second writer goes on after the complete files of the first, and that nothing is overwritten.
func TestWriteIntoABucket(t *testing.T) {
	samples := noise(40) // block files of about 1 MiB
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{110 << 10}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			at := b.at + "/packed"
			create := func(fingerprint string) (*block.Writer, error) {
				path := at
				place, err := source.Remote{Remote: b.remote}.Place(&path)
				if err != nil {
					t.Fatal(err)
				}
				return block.Create(t.Context(), path, block.Options{Schema: schema, BlockBytes: 256 << 10, FileBytes: 1 << 20,
					Source: block.Origin{Kind: "raw", Fingerprint: fingerprint}, Place: place})
			}
			write := func(w *block.Writer, to int) {
				t.Helper()
				for i := w.Next(); i < to; i++ {
					if err := w.Write(samples[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
			w, err := create("one")
			if err != nil {
				t.Fatal(err)
			}
			write(w, 25)
			whole := w.Whole()
			if err := w.Close(); err != nil || whole == 0 {
				t.Fatal(whole, err)
			}
			if _, err := b.open(at, source.Settings{"kind": "block"}); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an incomplete dataset opens: %v", err)
			}
			if _, err := create("two"); !errors.Is(err, block.ErrInTheWay) {
				t.Errorf("over the files of another writer: %v", err)
			}
			if w, err = create("one"); err != nil || w.Next() != whole {
				t.Fatalf("goes on at %d, want %d: %v", w.Next(), whole, err)
			}
			write(w, len(samples))
			if err := w.Finish(); err != nil {
				t.Fatal(err)
			}
			s, err := b.open(at, source.Settings{"kind": "block"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for i, want := range samples {
				got := make([]byte, len(want))
				if _, err := s.Read(t.Context(), i, got); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("sample %d: %v", i, err)
				}
			}
			for fingerprint, want := range map[string]error{"one": block.ErrWhole, "two": block.ErrInTheWay} {
				if _, err := create(fingerprint); !errors.Is(err, want) {
					t.Errorf("%s over the complete dataset: %v, want %v", fingerprint, err, want)
				}
			}
		})
	}
}
