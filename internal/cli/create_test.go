package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// Ensure that create makes what its flags say, prints the numbers, and says how long the cache
// exists.
func TestCreate(t *testing.T) {
	dir := tmpfs.Folder(t)
	out := ok(t, "create", "a", "--dir", dir, "--samples", "1000", "--shape", "3,32,32", "--size", "8MiB",
		"--fingerprint", "v1", "--clients", "7")
	contains(t, out, filepath.Join(dir, "a"), "1,000", "3.0 KiB", "this cache stays until: stocached rm a --dir "+dir+
		"\n")
	s := fatal.Value(shm.Open(filepath.Join(dir, "a"), shm.OpenOptions{Fingerprint: "v1"}))(t)
	defer s.Close()
	if s.SegmentBytes > 8<<20 || s.Slots != 1000 || s.ClientRecords != 7 || s.Header.Limit != 8<<20 ||
		!s.HasSlotTable() || s.Header.Flags&(shm.FlagUnlinkLast|shm.FlagReserved) != 0 {
		t.Error(s.Geometry, s.Header)
	}
	if f := s.Header.Fields; len(f) != 1 || f[0].Name != "data" || f[0].DType != shm.Uint8 ||
		formatShape(f[0].Dims) != "3,32,32" {
		t.Error(f)
	}
}

// Ensure that each kind of sample, and each other flag, has its effect.
func TestCreateFlags(t *testing.T) {
	dir := tmpfs.Folder(t)
	for name, c := range map[string]struct {
		args []string
		want jsonObject
	}{
		"fields": {[]string{"--field", "image:uint8:3,8,8", "--field", "label:int64"},
			jsonObject{"sample_bytes": 200, "slots": 100, "slots_fraction": 1}},
		"bytes": {[]string{"--sample-bytes", "1KiB", "--slots", "25"},
			jsonObject{"sample_bytes": 1024, "slots": 25, "slots_fraction": 0.25, "payload_bytes": 25 << 10}},
		"dtype":  {[]string{"--shape", "5", "--dtype", "float64"}, jsonObject{"sample_bytes": 40}},
		"scalar": {[]string{"--field", "data:float32"}, jsonObject{"sample_bytes": 4}},
		"arena": {[]string{"--variable", "--size", "8MB"},
			jsonObject{"slots": nil, "slots_fraction": nil, "sample_bytes": 1<<32 - 1, "slot_bytes": nil}},
		"rows": {[]string{"--variable", "--size", "8MB", "--shape", "?,3", "--dtype", "int16",
			"--sample-bytes", "600"}, jsonObject{"sample_bytes": 600}},
		"chains": {[]string{"--variable", "--size", "8MB", "--policy", "cost"},
			jsonObject{"slots": nil, "slots_fraction": nil, "sample_bytes": 1<<32 - 1, "slot_bytes": 4096}},
		"indices": {[]string{"--sample-bytes", "10", "--slots", "5", "--policy", "first-indices"},
			jsonObject{"slots": 5}},
		"reserve": {[]string{"--sample-bytes", "100", "--reserve"}, jsonObject{"unlink": "never"}},
		"last":    {[]string{"--sample-bytes", "100", "--unlink", "last"}, jsonObject{"unlink": "last"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := decode[jsonObject](t,
				ok(t, append([]string{"create", name, "--dir", dir, "--samples", "100", "--json"}, c.args...)...))
			wantFields(t, got, c.want)
			s := fatal.Value(shm.Open(filepath.Join(dir, name), shm.OpenOptions{}))(t)
			defer s.Close()
			wantFields(t, got, jsonObject{"name": name, "path": s.Path(), "samples": 100,
				"segment_bytes": int(s.SegmentBytes)})
			pages := fatal.Value(s.AllocatedBytes())(t)
			wantFields(t, got, jsonObject{"allocated_bytes": int(pages)})
			if (pages == s.SegmentBytes) != (name == "reserve") {
				t.Errorf("%d of %d bytes allocated", pages, s.SegmentBytes)
			}
			if (s.Policy == shm.PolicyFirstIndices) != (name == "indices") ||
				s.Variable() != (name == "arena" || name == "rows" || name == "chains") || s.Chains() != (name == "chains") {
				t.Errorf("flags %b", s.Header.Flags)
			}
			if name == "arena" && (s.Header.Fields[0].DType != shm.Bytes ||
				formatShape(s.Header.Fields[0].Dims) != "?") {
				t.Error(s.Header.Fields)
			}
		})
	}
	human := []string{"create", "human", "--dir", dir, "--samples", "9", "--sample-bytes", "9", "--unlink", "last"}
	contains(t, ok(t, human...), "ends with its last user", "stocached rm human")
	fails(t, exitExists, []string{"human", "stocached rm"}, human...)
}

// Ensure that a bad option has one error as a flag of create and as a key of a configuration.
func TestOptionErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	for option, values := range map[string][]string{"size": {"0", "0GiB", "-1", "1.5", "9EiB", "a lot", "9223372036854775808"},
		"policy": {"dearest"}} {
		for _, value := range values {
			text := fmt.Sprintf("caches: [{name: pets, %s: %s, source: {kind: raw, path: records, sample_bytes: 10}}]", option, value)
			fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
			said := map[string]bool{}
			for _, args := range [][]string{{"serve", "-c", path, "--check"},
				{"create", "pets", "--samples", "10", "--sample-bytes", "10", "--" + option + "=" + value}} {
				code, _, stderr := cli(t, args...)
				_, after, _ := strings.Cut(stderr, option+": ")
				line, _, _ := strings.Cut(after, "\n")
				said[fmt.Sprint(code, line)] = true
			}
			if len(said) != 1 || said[fmt.Sprint(exitUsage)] {
				t.Errorf("%s %s: %q", option, value, slices.Collect(maps.Keys(said)))
			}
		}
	}
}
