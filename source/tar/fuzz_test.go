package tar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// Ensure that a shard of any bytes is refused, or read as archive/tar reads it from start to end.
// -fuzzminimizetime=10x finds more, because inputs are long.
func FuzzShard(f *testing.F) {
	shards, err := filepath.Glob("testdata/*.tar")
	if err != nil || len(shards) < 10 {
		f.Fatalf("%d shards, %v", len(shards), err)
	}
	for _, path := range shards {
		data := fatal.Value(os.ReadFile(path))(f)
		f.Add(bytes.TrimRight(data, "\x00"), uint16(2048))
	}
	folder := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, zeros uint16) {
		data = bytes.Clone(data)
		sumHeaders(data)
		path := filepath.Join(folder, "fuzz.tar")
		fatal.If(t, os.WriteFile(path, append(data[:len(data):len(data)], make([]byte, zeros)...), 0o600))
		s, err := Kind.Open(context.Background(), source.Settings{"path": path, "index": noIndex, "missing": "skip"})
		if err != nil {
			if !errors.Is(err, source.ErrInvalid) && !errors.Is(err, source.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		defer s.Close()
		if int64(s.Info().Schema.SampleBytes) > int64(len(data))+1<<20 {
			t.Fatalf("a sample of %d bytes in a shard of %d", s.Info().Schema.SampleBytes, len(data))
		}
		wantSequential(t, s, path)
	})
}

// sumHeaders corrects the checksums of all headers, so that the code after the check of the
// checksum is tested.
func sumHeaders(data []byte) {
	for ; len(data) >= blockBytes; data = data[blockBytes:] {
		if !bytes.HasPrefix(data[257:], []byte("ustar")) {
			continue
		}
		copy(data[148:156], "        ")
		sum := 0
		for _, b := range data[:blockBytes] {
			sum += int(b)
		}
		copy(data[148:], fmt.Appendf(nil, "%06o\x00 ", sum))
	}
}

// wantSequential compares all samples with the members of a walk through the whole archive.
func wantSequential(t *testing.T, s source.Source, path string) {
	file := fatal.Value(os.Open(path))(t)
	defer file.Close()
	archive := tar.NewReader(struct{ io.Reader }{file}) // no Seek: it reads everything
	schema := s.Info().Schema
	read, before, fields := 0, "", map[string]string{}
	end := func() {
		want := make([]string, len(schema.Fields))
		for k, f := range schema.Fields {
			data, ok := fields[f.Name]
			if want[k] = data; !ok {
				return // lacks a field: skipped
			}
		}
		buffer := make([]byte, schema.SampleBytes)
		n, err := s.Read(context.Background(), read, buffer)
		if err != nil {
			t.Fatalf("sample %d: %v", read, err)
		}
		parts := fatal.Value(schema.Split(buffer[:n]))(t)
		for k := range parts {
			if string(parts[k].Data) != want[k] {
				t.Fatalf("sample %d, %s: %q, want %q", read, schema.Fields[k].Name, parts[k].Data, want[k])
			}
		}
		read++
	}
	for {
		h, err := archive.Next()
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			fatal.Equal(t, err, io.EOF, "after %d samples of a shard that was opened", read)
			break
		}
		key, field, ok := splitName(h.Name)
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeCont || !ok || len(field) > 255 {
			continue
		}
		if key != before {
			end()
			before, fields = key, map[string]string{}
		}
		data := fatal.Value(io.ReadAll(archive))(t)
		fields[field] = string(data)
	}
	end()
	fatal.Equal(t, read, s.Info().Samples, "samples")
}
