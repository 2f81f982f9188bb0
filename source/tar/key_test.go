package tar

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSplitName(t *testing.T) {
	for name, want := range map[string][2]string{
		"000123.jpg":         {"000123", "jpg"},
		"000123.seg.PNG":     {"000123", "seg.png"},
		"train/000123.jpg":   {"train/000123", "jpg"},
		"./a.b/000123.x.y.z": {"./a.b/000123", "x.y.z"},
		"/abs/1.a":           {"/abs/1", "a"},
		"__key__.txt":        {"__key__", "txt"},
		"README":             {}, "a.b/README": {}, ".hidden": {}, "a/.hidden": {}, "1.": {}, "": {}, "a/": {}, "__meta__": {}, "__meta__/1.a": {}, "____/1.a": {},
	} {
		key, field, ok := splitName(name)
		if key != want[0] || field != want[1] || ok != (want[1] != "") {
			t.Errorf("%q: %q, %q, %v; want %q", name, key, field, ok, want)
		}
	}
}

// The expressions are webdataset's own (base_plus_ext, and skip_meta of tar_file_iterator), with
// (?s) where ours treats a line feed like other characters.
var (
	theirs     = regexp.MustCompile(`(?s)^((?:.*/|)[^.]+)[.]([^/]*)$`)
	theirsMeta = regexp.MustCompile(`^__[^/]*__($|/)`)
)

// Ensure that names are split as in webdataset, except for the cases in the package comment: hidden
// members, and fields without a name or whose name is not UTF-8.
func FuzzSplitName(f *testing.F) {
	for _, name := range []string{"000123.jpg", "a/b.c/d.e.f", "a/.b", "./x.y", "/.x", "..", "a..b", "__x__/y.z",
		"_____", "___", "x\n.y", "\xff.\xfe", "a/b/", "É.É"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		key, field, ok := splitName(name)
		base := name[strings.LastIndexByte(name, '/')+1:]
		m := theirs.FindStringSubmatch(name)
		want := m != nil && m[2] != "" && !strings.HasPrefix(base, ".") && !theirsMeta.MatchString(name) && utf8.ValidString(m[2])
		if ok != want {
			t.Fatalf("%q: %v, want %v", name, ok, want)
		}
		if ok && (key != m[1] || field != strings.ToLower(m[2])) {
			t.Fatalf("%q: %q, %q; want %q", name, key, field, m[1:])
		}
	})
}
