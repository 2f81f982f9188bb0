package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

const header = "../../cclient/stocached.h"

func python(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	python, err := generate(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return python
}

// Ensure that the Python module is the generated one.
func TestModuleIsFresh(t *testing.T) {
	const path = "../../python/src/stocached/_native/_header.py"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, python(t)) {
		t.Fatalf("%s differs from what %s says: run go generate ./internal/ctypes and commit it", path, header)
	}
}

// Ensure that the module has all of the header.
func TestModuleIsComplete(t *testing.T) {
	text, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	have := string(python(t))
	for in, out := range map[string]string{"\nSTOC_API ": " = bind(", "\nstruct stoc_": "(ctypes.Structure):",
		"\nenum stoc_": "\n# enum stoc_", "\ntypedef struct ": "(c_void_p):"} {
		if want, got := strings.Count(string(text), in), strings.Count(have, out); got != want || want == 0 {
			t.Errorf("the header has %d of %q, the module %d of %q", want, in, got, out)
		}
	}
	have = strings.NewReplacer("bind(\n    ", "bind(", ",\n    ", ", ").Replace(have) // a long line is broken
	for _, name := range brief {
		if !strings.Contains(have, "\n"+name+" = bind(holding, ") {
			t.Errorf("%s is brief, but no function of the header", name)
		}
	}
}

// Ensure that an unknown declaration is an error, and not a wrong result.
func TestRefused(t *testing.T) {
	for _, text := range []string{
		"STOC_API float stoc_half(int x);", "STOC_API int stoc_take(long double x);", "struct stoc_odd { long x; };",
		"enum stoc_odd { STOC_ONE };",
		"struct stoc_odd { int x[2][2]; };", "static int x;", "struct stoc_odd { float (*f)(int x); };",
	} {
		if out, err := generate(text); err == nil {
			t.Errorf("%s: no error, but\n%s", text, out)
		}
	}
}
