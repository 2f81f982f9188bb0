package tar_test

import (
	stdtar "archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/tar"
)

// one is a member of a test shard.
type one struct {
	name string
	data []byte
	kind byte // 0: a regular file
	link string
}

func text(name, data string) one { return one{name: name, data: []byte(data)} }

// archive returns a tar archive.
func archive(t testing.TB, format stdtar.Format, members ...one) []byte {
	t.Helper()
	var b bytes.Buffer
	w := stdtar.NewWriter(&b)
	for _, m := range members {
		h := &stdtar.Header{Name: m.name, Mode: 0o644, Size: int64(len(m.data)), Typeflag: stdtar.TypeReg,
			Linkname: m.link, Format: format, ModTime: time.Unix(1, 0)}
		if m.kind != 0 {
			h.Typeflag = m.kind
		}
		fatal.If(t, w.WriteHeader(h))
		fatal.Value(w.Write(m.data))(t)
	}
	fatal.If(t, w.Close())
	return b.Bytes()
}

func writeFile(t testing.TB, path string, data []byte) string {
	t.Helper()
	fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
	fatal.If(t, os.WriteFile(path, data, 0o600))
	return path
}

// shardOf writes a shard into its own folder.
func shardOf(t testing.TB, members ...one) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "shard.tar"), archive(t, stdtar.FormatUnknown, members...))
}

func openTar(t testing.TB, s source.Settings) (source.Source, error) {
	t.Helper()
	src, err := tar.Kind.Open(context.Background(), s)
	if err == nil {
		t.Cleanup(func() { src.Close() })
	}
	return src, err
}

func mustOpen(t testing.TB, s source.Settings) source.Source {
	t.Helper()
	src := fatal.Value(openTar(t, s))(t)
	return src
}

// sample reads sample i and splits it.
func sample(t testing.TB, s source.Source, i int) map[string]string {
	t.Helper()
	n := fatal.Value(s.Size(i))(t)
	data := make([]byte, n)
	fatal.Gives(s.Read(context.Background(), i, data))(t, n, i)
	schema := s.Info().Schema
	parts := fatal.Value(schema.Split(data))(t)
	fields := map[string]string{}
	for k, f := range schema.Fields {
		fields[f.Name] = string(parts[k].Data)
	}
	return fields
}

// refused checks that open returns ErrInvalid or ErrCorrupt with a message.
func refused(t *testing.T, s source.Settings, kind error, wants ...string) {
	t.Helper()
	_, err := openTar(t, s)
	if !errors.Is(err, kind) {
		t.Errorf("%v; want %v", err, kind)
		return
	}
	for _, want := range wants {
		expect.Says(t, err.Error(), want)
	}
}

// bytesOf returns data that differs by sample and field.
func bytesOf(i, n int) []byte {
	data := make([]byte, n)
	for k := range data {
		data[k] = byte(i*37 + k*11 + k>>8)
	}
	return data
}

// joined returns the expected bytes of a sample.
func joined(t testing.TB, fields []string, parts ...[]byte) []byte {
	t.Helper()
	var all []shm.Field
	var data []shm.Part
	for k, f := range fields {
		all = append(all, shm.Field{Name: f, DType: shm.Bytes, Dims: []uint64{shm.VariableDim}})
		data = append(data, shm.Part{Dims: []uint64{uint64(len(parts[k]))}, Data: parts[k]})
	}
	schema := fatal.Value(shm.NewSchema(all, true))(t)
	sample := fatal.Value(schema.Join(data))(t)
	return sample
}

func cls(i int) []byte { return fmt.Append(nil, i%10) }

func openContext(ctx context.Context, path string) (source.Source, error) {
	return tar.Kind.Open(ctx, source.Settings{"path": path})
}
