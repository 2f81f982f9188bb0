package tar

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stocached/stocached/internal/verify/fatal"
)

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
		"_____", "___", "x\n.y", "000123.seg.PNG", "/abs/1.a", "README", "a.b/README", ".hidden", "1.", "", "__meta__", "__meta__/1.a",
		"____/1.a", "__key__.txt", "\xff.\xfe", "a/b/", "É.É"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		key, field, ok := splitName(name)
		base := name[strings.LastIndexByte(name, '/')+1:]
		m := theirs.FindStringSubmatch(name)
		want := m != nil && m[2] != "" && !strings.HasPrefix(base, ".") && !theirsMeta.MatchString(name) && utf8.ValidString(m[2])
		fatal.Equal(t, ok, want, "%q", name)
		if ok && (key != m[1] || field != strings.ToLower(m[2])) {
			t.Fatalf("%q: %q, %q; want %q", name, key, field, m[1:])
		}
	})
}
