package decode_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
)

// memory is a source of files in memory, with the schema of package dir.
type memory struct {
	names []string
	files [][]byte
	info  source.Info
}

func fieldsOf(names ...string) []shm.Field {
	fields := make([]shm.Field, len(names))
	for k, n := range names {
		fields[k] = shm.Field{Name: n, DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}
	}
	return fields
}

func newMemory(t testing.TB, fields []shm.Field, samples ...[]byte) *memory {
	t.Helper()
	schema := fatal.Value(shm.NewSchema(fields, true))(t)
	m := &memory{files: samples, info: source.Info{Kind: "memory", Samples: len(samples), Schema: schema, Fingerprint: "memory-1"}}
	for k := range samples {
		m.names = append(m.names, fmt.Sprintf("file %d", k))
	}
	return m
}

// files is a source of files of testdata.
func files(t testing.TB, names ...string) *memory {
	t.Helper()
	var all [][]byte
	for _, name := range names {
		all = append(all, read(t, name))
	}
	m := newMemory(t, fieldsOf("data"), all...)
	m.names = names
	return m
}

func (m *memory) Info() source.Info { return m.info }
func (m *memory) Close() error      { return nil }

func (m *memory) Where(i int) string {
	if i < 0 || i >= len(m.names) {
		return ""
	}
	return m.names[i]
}

func (m *memory) Size(i int) (int, error) {
	if i < 0 || i >= len(m.files) {
		return 0, source.BadIndex(i, len(m.files))
	}
	return len(m.files[i]), nil
}

func (m *memory) Read(ctx context.Context, i int, dst []byte) (int, error) {
	n, err := m.Size(i)
	if err == nil {
		err = source.CheckRead(ctx, i, len(m.files), n, dst)
	}
	if err != nil {
		return 0, err
	}
	return copy(dst, m.files[i]), nil
}

// open decodes with a helper.
func open(t testing.TB, s source.Source, settings map[string]any) source.Source {
	t.Helper()
	helper(t)
	d := fatal.Value(decode.New(s, settings))(t)
	t.Cleanup(func() { d.Close() })
	return d
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	data := fatal.Value(os.ReadFile(filepath.Join("testdata", name)))(t)
	return data
}

func readOne(s source.Source, i int) ([]byte, error) {
	n, err := s.Size(i)
	if err != nil {
		return nil, err
	}
	sample := make([]byte, n)
	n, err = s.Read(context.Background(), i, sample)
	return sample[:n], err
}
