package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

var headers = []struct{ path, module, prefix, library, api string }{
	{"cclient/stocached.h", "_header.py", "stoc_", "_library", "STOC_API"},
	{"cimage/stocached_image.h", "_image_header.py", "stoc_image_", "_image_library", "STOC_IMAGE_API"},
}

// Ensure that each Python module is the generated one, and has all of its header.
func TestModules(t *testing.T) {
	all := ""
	for _, h := range headers {
		prefix, library = h.prefix, h.library
		text, err := os.ReadFile("../../" + h.path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := generate(h.path, string(text))
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile("../../python/src/stocached/_native/" + h.module)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s differs from what %s says: run go generate ./internal/ctypes and commit it", h.module, h.path)
		}
		for in, out := range map[string]string{"\n" + h.api + " ": " = bind(", "\nstruct stoc_": "(ctypes.Structure):",
			"\nenum stoc_": "\n# enum stoc_", "\ntypedef struct ": "(c_void_p):"} {
			if want, got := strings.Count(string(text), in), strings.Count(string(have), out); got != want || want == 0 {
				t.Errorf("%s has %d of %q, the module %d of %q", h.path, want, in, got, out)
			}
		}
		all += string(have)
	}
	all = strings.NewReplacer("bind(\n    ", "bind(", ",\n    ", ", ").Replace(all) // a long line is broken
	for _, name := range brief {
		if !strings.Contains(all, "\n"+name+" = bind(holding, ") {
			t.Errorf("%s is brief, but no function of a header", name)
		}
	}
}

// Ensure that an unknown declaration is an error, and not a wrong result.
func TestRefused(t *testing.T) {
	for _, text := range []string{
		"STOC_API long double stoc_half(int x);", "STOC_API int stoc_take(long double x);", "struct stoc_odd { long x; };",
		"enum stoc_odd { STOC_ONE };",
		"struct stoc_odd { int x[2][2]; };", "static int x;", "struct stoc_odd { long double (*f)(int x); };",
	} {
		if out, err := generate("x.h", text); err == nil {
			t.Errorf("%s: no error, but\n%s", text, out)
		}
	}
}
