package dir_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/dir"
)

// write makes files below a new folder, and returns the folder. A content that begins with "-> "
// makes a symbolic link.
func write(t testing.TB, contents map[string]string) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "tree")
	fatal.If(t, os.Mkdir(root, 0o755))
	for name, content := range contents {
		add(t, filepath.Join(root, name), content)
	}
	return root
}

func add(t testing.TB, path, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		if target, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
	}
	fatal.If(t, err)
}

func open(root string, more source.Settings) (source.Source, error) {
	own := source.Settings{"path": root}
	maps.Copy(own, more)
	return dir.Kind.Open(context.Background(), own)
}

func mustOpen(t testing.TB, root string, more source.Settings) source.Source {
	t.Helper()
	s := fatal.Value(open(root, more))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

// names returns the paths of all samples below root.
func names(t testing.TB, s source.Source, root string) (all []string) {
	t.Helper()
	for i := range s.Info().Samples {
		name, ok := strings.CutPrefix(s.Where(i), root+"/")
		if !ok {
			t.Errorf("sample %d comes from %s, not from %s", i, s.Where(i), root)
		}
		all = append(all, name)
	}
	return all
}

func wantNames(t testing.TB, s source.Source, root string, want ...string) {
	t.Helper()
	expect.Slice(t, names(t, s, root), want, "")
}

func readAll(s source.Source, i int) ([]byte, error) {
	n, err := s.Size(i)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	n, err = s.Read(context.Background(), i, b)
	return b[:n], err
}

// fields reads a labelled sample.
func fields(t testing.TB, s source.Source, i int) (data string, label int64) {
	t.Helper()
	b := fatal.Value(readAll(s, i))(t)
	schema := s.Info().Schema
	parts, err := schema.Split(b)
	if err != nil || len(parts) != 2 {
		t.Fatal(parts, err)
	}
	return string(parts[0].Data), int64(binary.LittleEndian.Uint64(parts[1].Data))
}

// labelled returns the sample of a file and a label, laid out by hand: 40 bytes for each field (its
// bytes, its dims), padded to 128; data up to the next 64; the label and 56 more.
func labelled(data string, label int64) []byte {
	b := make([]byte, 128)
	binary.LittleEndian.PutUint64(b, uint64(len(data)))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(data)))
	binary.LittleEndian.PutUint64(b[40:], 8)
	b = append(b, data...)
	b = append(b, make([]byte, (64-len(data)%64)%64)...)
	return append(binary.LittleEndian.AppendUint64(b, uint64(label)), make([]byte, 56)...)
}

func dtypes(s shm.Schema) (text string) {
	for _, f := range s.Fields {
		text += fmt.Sprintf("%s %s %d;", f.Name, f.DType, len(f.Dims))
	}
	return text
}

// touch changes a time of modification.
func touch(t testing.TB, path string) {
	t.Helper()
	fatal.If(t, os.Chtimes(path, time.Time{}, time.Now().Add(3*time.Second)))
}

// long returns a content of bytesOf bytes that differs from place to place.
func long(bytesOf int, seed byte) string {
	b := make([]byte, bytesOf)
	for k := range b {
		b[k] = byte(k) ^ byte(k>>8) ^ byte(k>>16) ^ seed
	}
	return string(bytes.Clone(b))
}
