package npy_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/npy"
	"github.com/stocached/stocached/source/sourcetest"
)

func TestSuite(t *testing.T) {
	for _, g := range readGolden(t)[:4] { // TestGolden reads all
		t.Run(strings.TrimSuffix(g.File, ".npy"), func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				path := filepath.Join(t.TempDir(), g.File)
				data := fatal.Value(os.ReadFile(filepath.Join("testdata", g.File)))(t)
				fatal.If(t, os.WriteFile(path, data, 0o600))
				return sourcetest.Fixture{Open: func(*testing.T) (source.Source, error) { return open(path) }, Want: g.want(t),
					Files: []string{path}}
			})
		})
	}
}

// Ensure that each golden file has the dtype, the shape and the bytes that numpy gave it.
func TestGolden(t *testing.T) {
	for _, g := range readGolden(t) {
		s := fatal.Value(open(filepath.Join("testdata", g.File)))(t)
		info, want := s.Info(), g.want(t)
		f := info.Schema.Fields[0]
		if info.Samples != len(want) || info.Schema.Variable || len(info.Schema.Fields) != 1 || f.Name != "data" ||
			f.DType.String() != g.DType || !slices.Equal(f.Dims, g.Row) {
			t.Errorf("%s: %d samples of %+v; want %d of %s %v", g.File, info.Samples, info.Schema, len(want), g.DType, g.Row)
		}
		for i, row := range want {
			got := make([]byte, len(row))
			if n, err := s.Read(context.Background(), i, got); err != nil || n != len(row) || !bytes.Equal(got, row) {
				t.Errorf("%s, row %d: %x, %v; want %x", g.File, i, got, err, row)
			}
		}
		s.Close()
	}
}

// Headers that numpy reads but does not write.
func TestAccepts(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		body   int
	}{
		"no padding":               {"{'descr':'<i4','fortran_order':False,'shape':(2,3)}", 24},
		"other order, other quote": {`{"shape": (6,), "fortran_order": False, "descr": "<i4"}` + "   \n", 24},
		"long integers":            {dict("'<i4'", "False", "(2L, 3L)"), 24},
		"order of one byte":        {dict("'<u1'", "False", "(24,)"), 24},
		"Fortran, one dimension":   {dict("'|i1'", "True", "(24,)"), 24},
	} {
		path := filepath.Join(t.TempDir(), "x.npy")
		fatal.If(t, os.WriteFile(path, file(c.header, c.body), 0o600))
		s, err := open(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.Close()
	}
}

func TestRefuses(t *testing.T) {
	good := dict("'<f4'", "False", "(3, 2)")
	for name, c := range map[string]struct {
		file []byte
		want string // part of the message
	}{
		"empty":      {nil, "is no .npy file"},
		"a zip":      {[]byte("PK\x03\x04 and more than twelve bytes"), "is it an .npz"},
		"magic only": {[]byte("\x93NUMPY\x01\x00"), "is cut off: it has 8 bytes"},
		"version": {append([]byte("\x93NUMPY\x04\x00"), file(good, 24)[8:]...),
			"has version 4.0 of the format; 1.0, 2.0 and 3.0"},
		"minor version":  {append([]byte("\x93NUMPY\x01\x01"), file(good, 24)[8:]...), "has version 1.1"},
		"huge header":    {[]byte("\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr"), "header of 4294967295 bytes"},
		"header cut off": {file(good, 0)[:40], "its header ends at"},
		"truncated":      {file(good, 23), "is cut off, 1 bytes are missing: shape [3 2] of float32 takes 24 bytes"},
		"trailing":       {file(good, 25), "has 1 bytes too many"},
		"big-endian":     {file(dict("'>f4'", "False", "(3, 2)"), 24), `big-endian (>f4); convert it: x = numpy.load(path); numpy.save(out, x.astype(x.dtype.newbyteorder("<")))`},
		"Fortran order": {file(dict("'<f4'", "True", "(3, 2)"), 24),
			"numpy.save(out, numpy.ascontiguousarray(numpy.load(path)))"},
		"objects":           {file(dict("'|O'", "False", "(3,)"), 24), "pickled"},
		"a single item":     {file(dict("'<f4'", "False", "()"), 4), "numpy.atleast_1d"},
		"fields":            {file(dict("[('a', '<f4'), ('b', '<i8', (2,))]", "False", "(3,)"), 60), `numpy.load(path)["name"]`},
		"subarray":          {file(dict("('<f4', (2,))", "False", "(3,)"), 24), "records of several fields"},
		"bfloat16":          {file(dict("'<V2'", "False", "(3, 2)"), 12), "kind: raw, dtype: bfloat16, offset: 70"},
		"void":              {file(dict("'|V3'", "False", "(3, 2)"), 18), "x.view(numpy.uint8)"},
		"times":             {file(dict("'<M8[ns]'", "False", "(3,)"), 24), "view(numpy.int64)"},
		"strings":           {file(dict("'<U5'", "False", "(3,)"), 60), "holds strings"},
		"bytes":             {file(dict("'|S5'", "False", "(3,)"), 15), "holds strings"},
		"long double":       {file(dict("'<f16'", "False", "(3,)"), 48), "x.astype(numpy.float64)"},
		"unknown type":      {file(dict("'<f3'", "False", "(3,)"), 9), `unknown type "<f3"; known are <, and one of b1, u1, i1, u2,`},
		"no byte order":     {file(dict("'|f4'", "False", "(3,)"), 12), `unknown type "|f4"`},
		"empty type":        {file(dict("''", "False", "(3,)"), 12), "descr is"},
		"type is a number":  {file(dict("4", "False", "(3,)"), 12), "descr is 4"},
		"no rows":           {file(dict("'<f4'", "False", "(0, 2)"), 0), "holds no items: its shape is [0 2]"},
		"empty rows":        {file(dict("'<f4'", "False", "(3, 0)"), 0), "holds no items"},
		"overflow":          {file(dict("'<f4'", "False", "(4294967296, 4294967296)"), 0), "is too large"},
		"just overflow":     {file(dict("'<f4'", "False", "(4611686018427387904,)"), 0), "is too large"},
		"more than 64 bits": {file(dict("'<f4'", "False", "(18446744073709551616,)"), 0), "whole number of 64 bits"},
		"negative":          {file(dict("'<f4'", "False", "(-3, 2)"), 24), "dimension 0 of the shape is -3"},
		"no tuple":          {file(dict("'<f4'", "False", "(3)"), 12), "shape is 3, not a tuple"},
		"a list":            {file(dict("'<f4'", "False", "[3]"), 12), "not a tuple"},
		"order is a number": {file(dict("'<f4'", "1", "(3,)"), 12), "fortran_order is 1"},
		"key missing": {file("{'descr': '<f4', 'shape': (3,)}", 12),
			"expected a dict of descr, fortran_order and shape"},
		"key too many":  {file("{'descr': '<f4', 'shape': (3,), 'fortran_order': False, 'x': 1}", 12), "expected a dict"},
		"key twice":     {file("{'descr': '<f4', 'shape': (3,), 'descr': '<f4'}", 12), `the key "descr" twice`},
		"code":          {file("__import__('os').system('true')", 12), "where a value should be"},
		"more after it": {file(good+"1", 24), "nothing more should be"},
		"open bracket":  {file("{'descr': '<f4', 'shape': (3,", 12), "it ends where"},
		"open string":   {file("{'descr': '<f4", 12), "the end of a string"},
		"too deep":      {file("{'descr': "+strings.Repeat("(", 30)+strings.Repeat(")", 30)+"}", 12), "16 deep"},
		"no comma":      {file("{'descr': '<f4' 'shape': (3,)}", 12), "a comma or }"},
		"too many dims": {file(dict("'<f4'", "False", "(3, 1, 1, 1, 1, 1, 1, 1, 1, 1)"), 12),
			"has 9 dimensions, more than 8"},
	} {
		path := filepath.Join(t.TempDir(), "x.npy")
		fatal.If(t, os.WriteFile(path, c.file, 0o600))
		s, err := open(path)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	if _, err := npy.Kind.Open(context.Background(), source.Settings{}); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "no path") {
		t.Error(err)
	}
	if _, err := npy.Kind.Open(context.Background(), source.Settings{"path": "x", "rows": 3}); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "known are: path") {
		t.Error(err)
	}
	expect.Fails(open(t.TempDir()))(t, source.ErrInvalid, "not a regular file")
	expect.Fails(open(filepath.Join(t.TempDir(), "none.npy")))(t, os.ErrNotExist)
}

// The lines of numpy in the errors work.
func TestConversions(t *testing.T) {
	py := python()
	if py == "" {
		t.Skip("no python with numpy")
	}
	for name, c := range map[string]struct{ make, convert string }{
		"big-endian": {"numpy.arange(6, dtype='>f4').reshape(3, 2)", `x = numpy.load(path); numpy.save(out, x.astype(x.dtype.newbyteorder("<")))`},
		"Fortran order": {"numpy.asfortranarray(numpy.arange(6.).reshape(3, 2))",
			"numpy.save(out, numpy.ascontiguousarray(numpy.load(path)))"},
		"fields":        {"numpy.zeros(3, [('name', '<f4'), ('b', '<i8')])", `numpy.save(out, numpy.load(path)["name"])`},
		"times":         {"numpy.zeros(3, 'M8[ns]')", "numpy.save(out, numpy.load(path).view(numpy.int64))"},
		"a single item": {"numpy.float32(3)", "x = numpy.load(path); numpy.save(out, numpy.atleast_1d(x))"},
	} {
		folder := t.TempDir()
		path, out := filepath.Join(folder, "in.npy"), filepath.Join(folder, "out.npy")
		code := "import numpy, sys; path, out = sys.argv[1:]; numpy.save(path, " + c.make + "); " + c.convert
		if text, err := exec.Command(py, "-c", code, path, out).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		_, err := open(path)
		line := c.convert[strings.LastIndex(c.convert, "numpy.save"):]
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), line) {
			t.Errorf("%s: %v; want %q", name, err, line)
		}
		s, err := open(out)
		if err != nil {
			t.Errorf("%s, converted: %v", name, err)
			continue
		}
		s.Close()
	}
}
