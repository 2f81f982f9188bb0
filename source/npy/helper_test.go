package npy_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/npy"
)

// golden is what testdata/make.py writes about a file.
type golden struct {
	File  string
	DType string
	Row   []uint64
	Rows  []string // bytes of each, in hex
}

func readGolden(t *testing.T) (all []golden) {
	t.Helper()
	text := fatal.Value(os.ReadFile("testdata/golden.json"))(t)
	fatal.If(t, json.Unmarshal(text, &all))
	if len(all) < 14 {
		t.Fatalf("only %d golden files", len(all))
	}
	return all
}

func (g golden) want(t *testing.T) (rows [][]byte) {
	t.Helper()
	for _, text := range g.Rows {
		row := fatal.Value(hex.DecodeString(text))(t)
		rows = append(rows, row)
	}
	return rows
}

// python returns a Python with numpy: the project's, else the system's; "" if there is none.
func python() string {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		root = nil
	}
	for _, path := range []string{filepath.Join(strings.TrimSpace(string(root)), ".venv/bin/python"), "python3"} {
		if exec.Command(path, "-c", "import numpy").Run() == nil {
			return path
		}
	}
	return ""
}

// file returns the bytes of a file of version 1.0 with the given header and body bytes after it.
func file(header string, body int) []byte {
	b := append([]byte("\x93NUMPY\x01\x00"), 0, 0)
	binary.LittleEndian.PutUint16(b[8:], uint16(len(header)))
	return append(append(b, header...), make([]byte, body)...)
}

// dict returns a header as numpy writes it.
func dict(descr, order, shape string) string {
	return fmt.Sprintf("{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n", descr, order, shape)
}

func open(path string) (source.Source, error) {
	return npy.Kind.Open(context.Background(), source.Settings{"path": path})
}
