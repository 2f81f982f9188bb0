package kinds_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
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
	fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
	fatal.If(t, os.WriteFile(path, data, 0o600))
	return path
}

// arrayOf makes a .npy array of samples of one size.
func arrayOf(samples [][]byte) []byte {
	header := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }", len(samples), len(samples[0]))
	header += strings.Repeat(" ", 118-1-len(header)) + "\n" // 10 + 118 bytes: the array begins at 128
	head := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
	return append(append(head, header...), bytes.Join(samples, nil)...)
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
			return want, []string{write(t, folder+"/x.npy", arrayOf(want))}
		}},
		{kind: "tar", path: "/train-{0..1}.tar", make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			var files []string
			for shard := range 2 {
				var b bytes.Buffer
				w := tar.NewWriter(&b)
				for i := shard * 10; i < shard*10+10; i++ {
					fatal.If(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.bin", i), Size: 3000, Mode: 0o600}))
					fatal.Value(w.Write(want[i]))(t)
				}
				w.Close()
				files = append(files, write(t, fmt.Sprintf("%s/train-%d.tar", folder, shard), b.Bytes()))
			}
			return want, files
		}},
		{kind: "block", path: "/packed", make: func(t *testing.T, folder string) ([][]byte, []string) {
			want := samples(20, 3000)
			schema := fatal.Value(shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{3000}}}, false))(t)
			w, err := block.Create(t.Context(), folder+"/packed", block.Options{Schema: schema, BlockBytes: 16 << 10})
			fatal.If(t, err)
			for _, sample := range want {
				fatal.If(t, w.Write(sample))
			}
			fatal.If(t, w.Finish())
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

// plainServer serves the whole file system without ETags: with Last-Modified, if told to, which counts seconds.
// The first answer with bytes of a file breaks off in its middle if breaks does something.
func plainServer(t *testing.T, dated bool, breaks func()) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Open(r.URL.Path)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer f.Close()
		state, err := f.Stat()
		expect.NoError(t, err)
		modified := state.ModTime()
		if !dated {
			modified = time.Time{}
		}
		if r.Method == http.MethodGet && breaks != nil {
			once := breaks
			breaks = nil
			answer := httptest.NewRecorder()
			http.ServeContent(answer, r, r.URL.Path, modified, f)
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
			w.(http.Flusher).Flush()
			once()
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, r, r.URL.Path, modified, f)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// damage changes a byte in each file, but not its size, and makes it some seconds younger.
func damage(t *testing.T, files []string, at int) {
	t.Helper()
	for _, path := range files {
		data := read(t, path)
		data[at] ^= 0xff
		write(t, path, data)
		later := time.Now().Add(5 * time.Second)
		fatal.If(t, os.Chtimes(path, later, later))
	}
}

// Ensure that Last-Modified tells a change that keeps the size, if a web server sends no ETag: reads fail, and the
// source has another fingerprint when it is opened again. Of a server that sends neither, each kind says that such a
// change is not noticed.
func TestWebServersWithoutETags(t *testing.T) {
	for _, d := range datasets() {
		for _, dated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, dated %v", d.kind, dated), func(t *testing.T) {
				folder := t.TempDir()
				want, files := d.make(t, folder)
				settings := mergedWith(d.extra, "kind", d.kind)
				settings["path"] = plainServer(t, dated, nil) + folder + d.path
				if d.kind == "dir" {
					settings["manifest"], settings["index"] = folder+"/names.txt", t.TempDir()+"/list"
				}
				open := func() source.Source { return opened(t, settings) }
				said := func(s source.Source) bool {
					return slices.ContainsFunc(s.Info().Notes, func(n source.Note) bool {
						return n.Name == "changes unnoticed" && n.Advice && strings.Contains(n.Text, "neither ETag nor Last-Modified") &&
							strings.Contains(n.Text, "give each changed object another name")
					})
				}
				s, got := open(), make([]byte, 4000)
				if n, err := s.Read(t.Context(), 0, got); err != nil || !bytes.Equal(got[:n], want[0]) {
					t.Fatal(n, err)
				}
				if again := open(); said(s) == dated || said(again) == dated { // also with an index that was kept
					t.Errorf("the notes are %+v, and then %+v", s.Info().Notes, again.Info().Notes)
				}
				if !dated {
					return
				}
				damage(t, files, 700)
				expect.Fails(s.Read(t.Context(), 0, got))(t, source.ErrChanged)
				if delete(settings, "index"); open().Info().Fingerprint == s.Info().Fingerprint {
					t.Error("a changed object has the same fingerprint")
				}
			})
		}
	}
}

// Ensure that a sample is no mix of two states of an object that changes between an answer which broke off and the
// one for its rest, if the server has no ETags.
func TestChangeBehindABrokenAnswer(t *testing.T) {
	path := write(t, t.TempDir()+"/records", bytes.Join(samples(1, 3000), nil))
	address := plainServer(t, true, func() { damage(t, []string{path}, 2500) })
	s := opened(t, source.Settings{"kind": "raw", "path": address + path, "sample_bytes": 3000})
	if n, err := s.Read(t.Context(), 0, make([]byte, 3000)); !errors.Is(err, source.ErrChanged) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
