package npy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that no bytes make the parsers panic or run without end, and that accepted headers are
// consistent.
func FuzzHeader(f *testing.F) {
	files, err := filepath.Glob("testdata/*.npy")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, path := range files {
		data := fatal.Value(os.ReadFile(path))(f)
		f.Add(data)
	}
	f.Add([]byte("\x93NUMPY\x01\x00\x40\x00{'descr': [('a', '<f4'), ('b', '<i8', (2,))], 'shape': (3L,), }"))
	f.Fuzz(func(t *testing.T, data []byte) {
		start, end, err := prefix(data[:min(len(data), prefixMax)])
		if err != nil {
			return
		}
		if start < 10 || end < start || end > prefixMax+headerMost {
			t.Fatalf("a dict at %d..%d", start, end)
		}
		h, err := parse(data[:min(len(data), end)], start, end, int64(len(data)))
		if err != nil {
			return
		}
		n, row := h.rows()
		bytes := h.dtype.ItemSize() * n
		for _, d := range row {
			bytes *= d
		}
		if n == 0 || bytes == 0 || uint64(h.bytes)+bytes != uint64(len(data)) {
			t.Fatalf("%+v of a file of %d bytes", h, len(data))
		}
	})
}

// Ensure that any text is a literal or an error.
func FuzzLiteral(f *testing.F) {
	for _, text := range []string{"{'a': (1, 2L, -3), \"b\": [True, False, None]}", "()", "(1,)", "((1))", "'\\''",
		"{", "[[[[", "-"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := literal(text); err != nil && v != nil {
			t.Fatalf("%v and %v", v, err)
		}
	})
}
