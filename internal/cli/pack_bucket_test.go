package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

const bucketOut = "s3://" + s3test.Bucket + "/packed"

// bigSource makes records of 60 MB, and flags for block files of 24 MiB: three parts each, and a short one.
func bigSource(t *testing.T) (path string, flags []string, want map[string]string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "records.bin")
	b, x := make([]byte, 60_000_000), uint64(88172645463325252)
	for k := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[k] = byte(x >> 32)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	flags = []string{"--kind", "raw", "--source", "sample_bytes=100000", "--block-size", "1MiB", "--file-size", "24MiB"}
	local := filepath.Join(t.TempDir(), "packed")
	ok(t, args("pack", path, local, flags)...)
	return path, flags, sourcetest.Tree(t, local)
}

// sameObjects compares the objects of a packed dataset with local files.
func sameObjects(t *testing.T, s *s3test.Server, want map[string]string) {
	t.Helper()
	names := s.Names(t, "packed")
	if len(names) != len(want) {
		t.Errorf("objects %v, want %d", names, len(want))
	}
	for name, data := range want {
		if got := s.Get(t, "packed/"+name); string(got) != data {
			t.Errorf("%s has %d bytes that differ from the %d of a local file", name, len(got), len(data))
		}
	}
}

// Ensure that pack writes into a bucket what it writes into a folder, that the commands for sources read it
// there, and that it overwrites nothing.
func TestPackIntoABucket(t *testing.T) {
	path, flags, want := bigSource(t)
	small, smallFlags := rawSource(t, 92)
	for name, start := range s3test.Servers(t) {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			pack := args("pack", path, bucketOut, flags, "--remote", "endpoint="+s.URL)
			out := ok(t, append(pack, "--verify", "--json")...)
			var said struct {
				Samples, Files int
				Verified       bool
			}
			if err := json.Unmarshal([]byte(out), &said); err != nil || said.Samples != 600 || said.Files != 3 || !said.Verified {
				t.Errorf("%v: %s", err, out)
			}
			sameObjects(t, s, want)
			there := args(bucketOut+"/", "--kind", "block", "--source", "remote={endpoint: "+s.URL+"}")
			contains(t, ok(t, append([]string{"source", "info"}, there...)...), "600")
			contains(t, ok(t, append([]string{"source", "verify"}, there...)...), "600")
			records, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := ok(t, args("source", "cat", there[0], "17", there[1:])...); got != string(records[1_700_000:1_800_000]) {
				t.Errorf("cat wrote %d bytes that differ", len(got))
			}
			contains(t, ok(t, pack...), "already complete")
			fails(t, exitExists, []string{"made from other data"}, args("pack", small, bucketOut, smallFlags, "--remote", "endpoint="+s.URL)...)
			s.Put(t, "other/readme.txt", []byte("x"))
			fails(t, exitExists, []string{"other/readme.txt"}, args("pack", small, "s3://"+s3test.Bucket+"/other", smallFlags,
				"--remote", "endpoint="+s.URL)...)
		})
	}
	fails(t, exitUsage, []string{"local path"}, args("pack", small, filepath.Join(t.TempDir(), "x"), smallFlags, "--remote", "endpoint=x")...)
	web := "https://127.0.0.1/packed"
	fails(t, exitUsage, []string{"only reads"}, args("pack", small, web, smallFlags)...)
}

// Ensure that a pack which is killed in the middle of an upload leaves no object that looks complete, and
// that the same command goes on with the part after those that the bucket has.
func TestPackIntoABucketKilled(t *testing.T) {
	path, flags, want := bigSource(t)
	for name, start := range s3test.Servers(t) {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			var parts, killAt atomic.Int64
			var running atomic.Pointer[os.Process]
			s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				next.ServeHTTP(w, r)
				if r.Method == http.MethodPut && r.URL.Query().Has("partNumber") && parts.Add(1) == killAt.Load() {
					_ = running.Load().Kill() // after the server has the part
				}
			})
			pack := args("pack", path, bucketOut, flags, "--remote", "endpoint="+s.URL, "-j", "1")
			killed := 0
			for _, at := range []int64{2, 5, 8} { // of about 9 parts
				killAt.Store(at)
				p := program(pack...)
				var stderr bytes.Buffer
				p.Stderr = &stderr
				if err := p.Start(); err != nil {
					t.Fatal(err)
				}
				running.Store(p.Process)
				if err := p.Wait(); err == nil {
					break // the parts at the end came together
				}
				if stderr.Len() > 0 {
					t.Errorf("not killed: %s", stderr.String())
				}
				killed++
				names := s.Names(t, "packed")
				if slices.Contains(names, "packed/dataset.json") {
					t.Errorf("an incomplete dataset has a dataset.json: %v", names)
				}
				for _, name := range names {
					if got, whole := s.Get(t, name), want[strings.TrimPrefix(name, "packed/")]; string(got) != whole {
						t.Errorf("%s appears with %d of %d bytes", name, len(got), len(whole))
					}
				}
				texts := []string{"no dataset in block files"}
				if len(names) > 0 {
					texts = []string{"not whole"}
				}
				fails(t, exitNotFound, texts, "source", "info", bucketOut, "--kind", "block", "--source", "remote={endpoint: "+s.URL+"}")
			}
			killAt.Store(0)
			ok(t, pack...)
			sameObjects(t, s, want)
			whole := int64(0)
			for file, data := range want {
				if strings.HasSuffix(file, ".stocblk") && len(data) > 8<<20 {
					whole += int64(len(data)+8<<20-1) / (8 << 20)
				}
			}
			// A kill loses at most the parts under way.
			if sent, most := parts.Load(), whole+int64(killed)*4; sent > most || killed < 2 {
				t.Errorf("%d parts were sent for %d, after %d kills", sent, whole, killed)
			}
		})
	}
}

// Ensure that the commands find out that a dataset in block files lies at an address, in a bucket and on a web
// server, and that they take other addresses for a tree of files.
func TestKindOfAnAddress(t *testing.T) {
	small, flags := rawSource(t, 92)
	s := s3test.Servers(t)["gofakes3"](t)
	remote := "remote={endpoint: " + s.URL + "}"
	ok(t, args("pack", small, bucketOut, flags, "--remote", "endpoint="+s.URL)...)
	ok(t, args("pack", small, "s3://"+s3test.Bucket+"/packed.v2", flags, "--remote", "endpoint="+s.URL)...)
	s.Put(t, "files/a.jpg", []byte("a"))
	s.Put(t, "files/b.jpg", []byte("bc"))
	for path, want := range map[string]string{bucketOut: "block", bucketOut + "/": "block", bucketOut + ".v2": "block",
		"s3://" + s3test.Bucket + "/files": "dir", s.URL + "/" + s3test.Bucket + "/packed": "block"} {
		flags := []string{"--json"}
		if strings.HasPrefix(path, "s3:") {
			flags = append(flags, "--source", remote)
		}
		info := decode[struct {
			Kind    string
			Samples int
		}](t, ok(t, args("source", "info", path, flags)...))
		if samples := map[string]int{"block": 92, "dir": 2}[want]; info.Kind != want || info.Samples != samples {
			t.Errorf("%s: kind %s with %d samples, want %s with %d", path, info.Kind, info.Samples, want, samples)
		}
	}
	fails(t, exitUsage, []string{"--kind"}, "source", "info", "s3://"+s3test.Bucket+"/records.bin", "--source", remote)
	s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusForbidden) })
	fails(t, exitPermission, []string{"dataset.json", "--kind"}, "source", "info", bucketOut, "--source", remote)
}
