package cli

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/shm"
)

// Ensure that create makes what its flags say, prints the numbers, and says how long the cache
// exists.
func TestCreate(t *testing.T) {
	dir := tmpfs(t)
	out := ok(t, "create", "a", "--dir", dir, "--samples", "1000", "--shape", "3,32,32", "--size", "8MiB",
		"--fingerprint", "v1", "--clients", "7")
	contains(t, out, filepath.Join(dir, "a"), "1,000", "3.0 KiB", "this cache stays until: stocached rm a --dir "+dir+
		"\n")
	s, err := shm.Open(filepath.Join(dir, "a"), shm.OpenOptions{Fingerprint: "v1"})
	if err != nil {
		t.Fatal(err)
	}
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
	dir := tmpfs(t)
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
			s, err := shm.Open(filepath.Join(dir, name), shm.OpenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			wantFields(t, got, jsonObject{"name": name, "path": s.Path(), "samples": 100,
				"segment_bytes": int(s.SegmentBytes)})
			pages, err := s.AllocatedBytes()
			if err != nil {
				t.Fatal(err)
			}
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
	contains(t, ok(t, "create", "human", "--dir", dir, "--samples", "9", "--sample-bytes", "9", "--unlink", "last"),
		"ends with its last user", "stocached rm human")
}

// Ensure that create refuses what is invalid, does not fit or exists already, with its code, the
// numbers and the next step, and leaves no file.
func TestCreateRefuses(t *testing.T) {
	dir := tmpfs(t)
	ok(t, "create", "there", "--dir", dir, "--samples", "10", "--sample-bytes", "10")
	for _, c := range []struct {
		code  int
		texts []string
		args  []string
	}{
		{exitUsage, []string{"needs a name", "would go with this command"},
			[]string{"--samples", "10", "--sample-bytes", "10"}},
		{exitUsage, []string{"needs a name"}, []string{"", "--samples", "10", "--sample-bytes", "10"}},
		{exitUsage, []string{"2 names"}, []string{"a", "b", "--samples", "10", "--sample-bytes", "10"}},
		{exitUsage, []string{"--samples is needed"}, []string{"a", "--sample-bytes", "10"}},
		{exitUsage, []string{"--shape, --field, --sample-bytes or --variable"}, []string{"a", "--samples", "10"}},
		{exitUsage, []string{`".hidden" is not 1 to 100 of`},
			[]string{".hidden", "--samples", "10", "--sample-bytes", "10"}},
		{exitUsage, []string{`"8G" is not a size`, "1.5GiB"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--size", "8G"}},
		{exitUsage, []string{`"x" is not a dimension`}, []string{"a", "--samples", "10", "--shape", "3,x"}},
		{exitUsage, []string{`dtype "float" is none of`, "float32"},
			[]string{"a", "--samples", "10", "--shape", "3", "--dtype", "float"}},
		{exitUsage, []string{"give a --shape"},
			[]string{"a", "--samples", "10", "--sample-bytes", "8", "--dtype", "float32"}},
		{exitUsage, []string{"name:dtype:shape"}, []string{"a", "--samples", "10", "--field", "image"}},
		{exitUsage, []string{"differs between samples", "variable-size"},
			[]string{"a", "--samples", "10", "--shape", "?,3"}},
		{exitUsage, []string{"--field and --shape: give one of them"},
			[]string{"a", "--samples", "10", "--shape", "3", "--field", "image:uint8"}},
		{exitUsage, []string{"size: a variable-size cache needs one"}, []string{"a", "--samples", "10", "--variable"}},
		{exitUsage, []string{"policy: first-indices needs samples of one size", "take another policy"},
			[]string{"a", "--samples", "10", "--variable", "--size", "8MB", "--policy", "first-indices"}},
		{exitUsage, []string{"policy planned needs a server"},
			[]string{"a", "--samples", "10", "--variable", "--size", "8MB", "--policy", "planned"}},
		{exitMemory, []string{"one slot of 64 bytes for 10 samples needs 4.01 MiB", "the size of 1000000 bytes;", "samples have that it is to hold"},
			[]string{"a", "--samples", "10", "--variable", "--size", "1MB", "--policy", "lru"}},
		{exitUsage, []string{"slots: 20 is more than"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--slots", "20"}},
		{exitUsage, []string{"\"dearest\" is not one of first-come, "},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--policy", "dearest"}},
		{exitUsage, []string{"policy planned needs a server", "stocached serve"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--policy", "planned"}},
		{exitUsage, []string{"neither never nor last"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--unlink", "first"}},
		{exitUsage, []string{"clients: 9999 is not in 1..4095"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--clients", "9999"}},
		{exitUsage, []string{"fingerprint"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--fingerprint", string(make([]byte, 65))}},
		{exitUsage, []string{"unknown flag: --frob"}, []string{"a", "--frob"}},
		{exitMemory, []string{"needs 4.01 MiB, more than the size of 1000 bytes; 4.01 MiB hold all samples", "bytes"},
			[]string{"a", "--samples", "10", "--sample-bytes", "10", "--size", "1000"}},
		{exitMemory, []string{"the cache needs", "--size", "GiB"},
			[]string{"a", "--samples", "1000000000", "--sample-bytes", "1MiB"}},
		{exitExists, []string{"there", "stocached rm"}, []string{"there", "--samples", "10", "--sample-bytes", "10"}},
	} {
		fails(t, c.code, c.texts, append([]string{"create", "--dir", dir}, c.args...)...)
	}
	fails(t, exitUsage, []string{"nowhere", "no such file"}, "create", "a", "--dir", dir+"/nowhere",
		"--samples", "10", "--sample-bytes", "10")
	fails(t, exitUsage, []string{"not on a tmpfs"}, "create", "a", "--dir", "/", "--samples", "10",
		"--sample-bytes", "10")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Error(entries, err)
	}
}

// Ensure that --reserve shows a bar on a terminal, and nothing elsewhere.
func TestCreateReserveBar(t *testing.T) {
	dir := tmpfs(t)
	stderr, written := terminal(t)
	if code := Run([]string{"create", "a", "--dir", dir, "--samples", "10", "--sample-bytes", "16MiB", "--reserve"},
		io.Discard, stderr); code != exitOK {
		t.Fatal(code)
	}
	contains(t, written(), "reserve", "100 %", "160.0 MiB / 160.0 MiB")
	if code, _, stderr := cli(t, "create", "b", "--dir", dir, "--samples", "10", "--sample-bytes", "10",
		"--reserve"); code != exitOK || stderr != "" {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}
