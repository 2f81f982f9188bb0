package tar_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// golden is a sample as webdataset 1.0.2 read it (testdata/make.py).
type golden struct {
	Key    string
	Fields map[string][]byte
}

func goldens(t *testing.T) map[string][]golden {
	t.Helper()
	data := fatal.Value(os.ReadFile("testdata/wds.json"))(t)
	var all map[string][]golden
	fatal.If(t, json.Unmarshal(data, &all))
	return all
}

// copied copies shards of testdata into a folder, where their indexes are made.
func copied(t *testing.T, names ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range names {
		data := fatal.Value(os.ReadFile(filepath.Join("testdata", name)))(t)
		writeFile(t, filepath.Join(folder, name), data)
	}
	return folder
}

// Ensure that shards of webdataset's ShardWriter, and of Python's tarfile in each of its formats,
// read the same as with webdataset.
func TestReadsAsWebdataset(t *testing.T) {
	all := goldens(t)
	fatal.Equal(t, len(all), 7, "golden shards")
	folder := copied(t, slices.Collect(maps.Keys(all))...)
	for pattern, shards := range map[string][]string{
		"wds-{000000..000002}.tar":      {"wds-000000.tar", "wds-000001.tar", "wds-000002.tar"},
		"wds-*.tar":                     {"wds-000000.tar", "wds-000001.tar", "wds-000002.tar"},
		"wds-00000{2,0}.tar":            {"wds-000002.tar", "wds-000000.tar"},
		"tarfile-ustar.tar":             {"tarfile-ustar.tar"},
		"tarfile-{gnu,pax}.tar":         {"tarfile-gnu.tar", "tarfile-pax.tar"},
		"quirks.tar":                    {"quirks.tar"},
		"{quirks,{tarfile-gnu},wds-}.*": nil, // one of them matches nothing: see below
	} {
		t.Run(pattern, func(t *testing.T) {
			settings := source.Settings{"path": filepath.Join(folder, pattern), "missing": "skip"}
			if shards == nil {
				refused(t, settings, source.ErrInvalid, "no file matches", "{tarfile-gnu}.*")
				return
			}
			var want []golden
			for _, shard := range shards {
				for _, g := range all[shard] {
					if len(want) == 0 || hasAll(g, want[0]) {
						want = append(want, g)
					}
				}
			}
			for range 2 { // indexes made, then kept
				s := mustOpen(t, settings)
				fatal.Equal(t, s.Info().Samples, len(want), "samples")
				for i, g := range want {
					got := sample(t, s, i)
					if !strings.Contains(s.Where(i), fmt.Sprintf("sample %q", g.Key)) {
						t.Errorf("sample %d is %s, want key %q", i, s.Where(i), g.Key)
					}
					expect.Equal(t, len(got), len(want[0].Fields), "fields of sample %d", i)
					for name := range got {
						if got[name] != string(g.Fields[name]) {
							t.Errorf("sample %d, field %s: %q, want %q", i, name, got[name], g.Fields[name])
						}
					}
				}
			}
		})
	}
}

// hasAll says whether a sample has the fields of another one.
func hasAll(g, first golden) bool {
	for name := range first.Fields {
		if _, ok := g.Fields[name]; !ok {
			return false
		}
	}
	return true
}

// Ensure that sparse files in all formats of GNU tar are refused with their names.
func TestSparse(t *testing.T) {
	names := []string{"sparse-gnu.tar", "sparse-pax-0.0.tar", "sparse-pax-0.1.tar", "sparse-pax-1.0.tar"}
	folder := copied(t, names...)
	for _, name := range names {
		refused(t, source.Settings{"path": filepath.Join(folder, name)}, source.ErrInvalid, name, `"000.bin" is a sparse file`, "without --sparse")
	}
}
