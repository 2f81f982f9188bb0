package kinds_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/csv"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

// oddFiles returns files with odd names, with their bytes, which are those names. ok says which are of use.
func oddFiles(ok func(name string) bool) (names []string) {
	for _, name := range sourcetest.OddNames() {
		if name += ".bin"; ok(name) {
			names = append(names, name)
		}
	}
	return names
}

func anyName(string) bool { return true }

// isKey says whether S3 takes a name: text of UTF-8 that a document in XML may have.
func isKey(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsAny(name, "\x1b\r\n\t")
}

// hasSamples checks that a source has a sample of each name, in any order, of its bytes.
func hasSamples(t *testing.T, s source.Source, names []string) {
	t.Helper()
	var got []string
	for i := range s.Info().Samples {
		sample := make([]byte, 4096)
		n, err := s.Read(context.Background(), i, sample)
		if err != nil {
			t.Errorf("%s: %v", s.Where(i), err)
			continue
		}
		got = append(got, string(sample[:n]))
	}
	slices.Sort(got)
	names = slices.Sorted(slices.Values(names))
	for _, name := range names {
		if _, found := slices.BinarySearch(got, name); !found {
			t.Errorf("there is no sample with the bytes of %q", name)
		}
	}
	expect.Equal(t, len(got), len(names), "samples of the files")
}

// manifestOf writes a manifest.
func manifestOf(t *testing.T, names []string) string {
	t.Helper()
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	for _, name := range names {
		fatal.If(t, w.Write([]string{name}))
	}
	w.Flush()
	return write(t, t.TempDir()+"/manifest.csv", b.Bytes())
}

// Ensure that a file is found by its own name, whatever that is: on a disk, by a manifest, on a web server, in a
// bucket, and in a shard. No part of a name is taken for a query, a pattern, a code or a folder.
func TestOddNames(t *testing.T) {
	all, keys := oddFiles(anyName), oddFiles(isKey)
	if len(all) < 40 || len(keys) < 35 {
		t.Fatalf("%d odd names, %d of them keys", len(all), len(keys))
	}
	folder := t.TempDir()
	for _, name := range all {
		write(t, folder+"/"+name, []byte(name))
	}
	manifest := manifestOf(t, all)
	t.Run("folder", func(t *testing.T) {
		hasSamples(t, opened(t, source.Settings{"kind": "dir", "path": folder}), all)
		hasSamples(t, opened(t, source.Settings{"kind": "dir", "path": folder, "glob": "**/*.bin", "index": t.TempDir() + "/index"}), all)
		hasSamples(t, opened(t, source.Settings{"kind": "dir", "path": folder, "manifest": manifest}), all)
	})
	t.Run("web server", func(t *testing.T) {
		web := plainServer(t, true, nil) + folder
		s := opened(t, source.Settings{"kind": "dir", "path": web, "manifest": manifest})
		hasSamples(t, s, all)
		if at := slices.Index(all, "q?u.bin"); s.Where(at) != web+"/q%3Fu.bin" {
			t.Errorf("%q is %s", all[at], s.Where(at))
		}
	})
	t.Run("shard", func(t *testing.T) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range all {
			fatal.If(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(name)), Mode: 0o600}))
			fatal.Value(w.Write([]byte(name)))(t)
		}
		w.Close()
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		hasSamples(t, opened(t, source.Settings{"kind": "tar", "path": write(t, t.TempDir()+"/x.tar", b.Bytes())}), all)
	})
	t.Run("names of shards", func(t *testing.T) {
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		for _, name := range all {
			path := write(t, t.TempDir()+"/"+strings.TrimSuffix(name, ".bin")+".tar", shardOf(t, [][]byte{[]byte(name)}, 0))
			hasSamples(t, opened(t, source.Settings{"kind": "tar", "path": path, "fields": []any{"jpg"}}), []string{name})
		}
	})
	for server, start := range s3test.Servers(t) {
		t.Run(server, func(t *testing.T) {
			s := start(t)
			for _, name := range keys {
				s.Put(t, "d/"+name, []byte(name))
			}
			for _, credentials := range []string{"environment", "none"} {
				if credentials == "none" && server != "gofakes3" {
					continue // it gives nothing to requests without a signature
				}
				remote := map[string]any{"endpoint": s.URL, "credentials": credentials}
				hasSamples(t, opened(t, source.Settings{"kind": "dir", "path": "s3://photos/d", "remote": remote}), keys)
				hasSamples(t, opened(t, source.Settings{"kind": "dir", "path": "s3://photos/d", "remote": remote,
					"manifest": manifestOf(t, keys)}), keys)
				for _, shard := range []string{"a [1]?.tar", "st*r.tar", "ha#sh 100%.tar"} {
					s.Put(t, "shards/"+shard, shardOf(t, [][]byte{[]byte(shard)}, 0))
					s.Put(t, "shards/"+strings.NewReplacer("[1]?", "1x", "*", "xx").Replace(shard), shardOf(t, [][]byte{[]byte(shard)}, 0))
					hasSamples(t, opened(t, source.Settings{"kind": "tar", "path": "s3://photos/shards/" + shard, "remote": remote,
						"fields": []any{"jpg"}, "index": "none"}), []string{shard})
				}
			}
		})
	}
	t.Run("list of a bucket", func(t *testing.T) {
		l := &s3test.Lister{Objects: len(all), Page: 7, Key: func(i int) string { return "data/" + all[i] }}
		server := httptest.NewServer(l)
		defer server.Close()
		s := opened(t, source.Settings{"kind": "dir", "path": "s3://many/data", "remote": map[string]any{"endpoint": server.URL}})
		var got []string
		for i := range s.Info().Samples {
			got = append(got, strings.TrimPrefix(s.Where(i), "s3://many/data/"))
		}
		expect.Slice(t, got, slices.Sorted(slices.Values(all)), "")
	})
}
