package kinds_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/sourcetest"
)

// samples returns samples of one size that differ from each other.
func samples(n, size int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		for k := range size {
			all[i] = append(all[i], byte(i*31+k*7+k/256))
		}
	}
	return all
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// dataset is one of each kind in a folder, with the settings that open it below root.
type dataset struct {
	kind  string
	make  func(t *testing.T, folder string) (want [][]byte, files []string)
	path  string
	extra source.Settings
}

func datasets() []dataset {
	return []dataset{
		{kind: "raw", path: "/records", extra: source.Settings{"sample_bytes": 3000}, make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			return want, []string{write(t, folder+"/records", bytes.Join(want, nil))}
		}},
		{kind: "npy", path: "/x.npy", make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			header := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }", 20, 3000)
			header += strings.Repeat(" ", 118-1-len(header)) + "\n" // 10 + 118 bytes: the array begins at 128
			head := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
			return want, []string{write(t, folder+"/x.npy", append(append(head, header...), bytes.Join(want, nil)...))}
		}},
		{kind: "tar", path: "/train-{0..1}.tar", make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			var files []string
			for shard := range 2 {
				var b bytes.Buffer
				w := tar.NewWriter(&b)
				for i := shard * 10; i < shard*10+10; i++ {
					if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.bin", i), Size: 3000, Mode: 0o600}); err != nil {
						t.Fatal(err)
					}
					if _, err := w.Write(want[i]); err != nil {
						t.Fatal(err)
					}
				}
				w.Close()
				files = append(files, write(t, fmt.Sprintf("%s/train-%d.tar", folder, shard), b.Bytes()))
			}
			return want, files
		}},
		{kind: "block", path: "/packed", make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{3000}}}, false)
			if err != nil {
				t.Fatal(err)
			}
			w, err := block.Create(t.Context(), folder+"/packed", block.Options{Schema: schema, BlockBytes: 16 << 10})
			if err != nil {
				t.Fatal(err)
			}
			for _, sample := range want {
				if err := w.Write(sample); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Finish(); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(folder + "/packed/*.stocblk")
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			return want, files
		}},
		{kind: "dir", path: "/files", make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			names := ""
			var first string
			for i, sample := range want {
				name := fmt.Sprintf("%c/%d.bin", 'a'+i/7, i+10)
				path := write(t, folder+"/files/"+name, sample)
				if names += name + "\n"; i == 0 {
					first = path
				}
			}
			write(t, folder+"/names.txt", []byte(names))
			return want, []string{first}
		}},
	}
}

// webServer serves the whole file system, as nginx does: with ranges, and an ETag from time and size.
func webServer(t *testing.T) string {
	t.Helper()
	files := http.FileServer(http.Dir("/"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if st, err := os.Stat(r.URL.Path); err == nil {
			w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, st.ModTime().UnixNano(), st.Size()))
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// Ensure that all kinds read from a web server as from a disk.
func TestConformanceOverHTTP(t *testing.T) {
	for _, d := range datasets() {
		t.Run(d.kind, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				folder := t.TempDir()
				want, files := d.make(t, folder)
				address := webServer(t)
				open := func(t *testing.T) (source.Source, error) {
					s := source.Settings{"kind": d.kind, "path": address + folder + d.path}
					for key, value := range d.extra {
						s[key] = value
					}
					if d.kind == "dir" {
						s["manifest"] = folder + "/names.txt"
					}
					return kinds.Open(context.Background(), s)
				}
				return sourcetest.Fixture{Open: open, Want: want, Files: files}
			})
		})
	}
}
