package wrap_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/raw"
	"github.com/stocached/stocached/source/sourcetest"
)

// write makes a file of n records of size bytes each, and returns them.
func write(t testing.TB, n, size int) (path string, records [][]byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "records.bin")
	for k := range n {
		records = append(records, bytes.Repeat([]byte{byte(k + 1), byte(k >> 8)}, size)[:size])
	}
	fatal.If(t, os.WriteFile(path, bytes.Join(records, nil), 0o600))
	return path, records
}

func openRaw(path string, size int) (source.Source, error) {
	return raw.Kind.Open(context.Background(), source.Settings{"path": path, "sample_bytes": size})
}

// records opens n records.
func records(t testing.TB, n, size int) (source.Source, [][]byte) {
	t.Helper()
	path, want := write(t, n, size)
	s := fatal.Value(openRaw(path, size))(t)
	t.Cleanup(func() { s.Close() })
	return s, want
}

// blocky is a source whose samples lie in blocks of per samples.
type blocky struct {
	source.Source
	per int
}

func (b blocky) Blocks() int { return (b.Info().Samples + b.per - 1) / b.per }

func (b blocky) BlockOf(i int) int {
	if i < 0 || i >= b.Info().Samples {
		return -1
	}
	return i / b.per
}

func (b blocky) Block(k int) (first, n int) {
	if k < 0 || k >= b.Blocks() {
		return 0, 0
	}
	return k * b.per, min(b.per, b.Info().Samples-k*b.per)
}

func (b blocky) ReadBlock(ctx context.Context, k int, each func(i int, sample []byte) error) error {
	first, n := b.Block(k)
	if n == 0 {
		return source.BadIndex(k, b.Blocks())
	}
	for i := first; i < first+n; i++ {
		size, err := b.Size(i)
		if err != nil {
			return err
		}
		sample := make([]byte, size)
		if _, err := b.Read(ctx, i, sample); err != nil {
			return err
		}
		if err := each(i, sample); err != nil {
			return err
		}
	}
	return nil
}

// suite runs the suite of all sources for wrapped records, without and with blocks.
func suite(t *testing.T, wrap func(s source.Source) (source.Source, error)) {
	t.Helper()
	for name, per := range map[string]int{"samples": 0, "blocks": 3} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				path, want := write(t, 7, 24)
				return sourcetest.Fixture{Want: want, Files: []string{path}, Open: func(*testing.T) (source.Source, error) {
					s, err := openRaw(path, 24)
					if err != nil {
						return nil, err
					}
					if per > 0 {
						s = blocky{s, per}
					}
					w, err := wrap(s)
					if err != nil {
						s.Close()
						return nil, err
					}
					if _, ok := w.(source.Blocks); ok != (per > 0) {
						t.Error("a wrapper has blocks where its source has none, or hides them")
					}
					return w, nil
				}}
			})
		})
	}
}

// readOne reads a sample into a new buffer.
func readOne(s source.Source, i int) ([]byte, error) {
	n, err := s.Size(i)
	if err != nil {
		return nil, err
	}
	sample := make([]byte, n)
	n, err = s.Read(context.Background(), i, sample)
	return sample[:n], err
}

// readBlock reads a block.
func readBlock(s source.Source, b int) (samples [][]byte, err error) {
	err = s.(source.Blocks).ReadBlock(context.Background(), b, func(_ int, sample []byte) error {
		samples = append(samples, bytes.Clone(sample))
		return nil
	})
	return samples, err
}
