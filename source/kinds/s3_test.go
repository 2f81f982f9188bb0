package kinds_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

const bucket = s3test.Bucket

// bucketOf is a bucket on a server.
type bucketOf struct {
	at     string         // its address, such as s3://photos
	remote map[string]any // how to reach it
	put    func(t *testing.T, key string, data []byte)
	remove func(t *testing.T, key string)
	server *s3test.Server // counts and spoils its answers
}

// upload puts all files of a folder, under the key data/.
func (b bucketOf) upload(t *testing.T, folder string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			b.put(t, "data"+strings.TrimPrefix(path, folder), data)
		}
		return err
	})
	fatal.If(t, err)
}

// servers are the servers that the tests run against.
func servers(t *testing.T) map[string]func(t *testing.T) bucketOf {
	t.Helper()
	all := map[string]func(t *testing.T) bucketOf{}
	for name, start := range s3test.Servers(t) {
		all[name] = func(t *testing.T) bucketOf {
			s := start(t)
			return bucketOf{"s3://" + bucket, map[string]any{"endpoint": s.URL}, s.Put, s.Remove, s}
		}
	}
	return all
}

func (b bucketOf) open(path string, more source.Settings) (source.Source, error) {
	s := source.Settings{"path": path}
	if b.remote != nil {
		s["remote"] = b.remote
	}
	maps.Copy(s, more)
	return kinds.Open(context.Background(), s)
}

// opened opens a source until the test ends.
func opened(t *testing.T, s source.Settings) source.Source {
	t.Helper()
	opened := fatal.Value(kinds.Open(t.Context(), s))(t)
	t.Cleanup(func() { opened.Close() })
	return opened
}

func readAll(t *testing.T, s source.Source, want [][]byte) {
	t.Helper()
	fatal.Equal(t, s.Info().Samples, len(want), "samples")
	for i, sample := range want {
		got := make([]byte, len(sample))
		if n, err := s.Read(t.Context(), i, got); err != nil || n != len(sample) || !bytes.Equal(got, sample) {
			t.Fatalf("sample %d: %d bytes, %v", i, n, err)
		}
	}
}

// unsteady fails one answer in 40 to a request that only reads, also to one for a list or for the state of an object:
// it refuses it for now, ends the connection before or in the middle of the body, or says a wrong length. Rarely it
// gives no answer at all.
func unsteady(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || rand.IntN(40) > 0 {
		next.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	body := answer.Body.Bytes()
	switch rand.IntN(20) {
	case 0:
		<-r.Context().Done()
	case 1, 2, 3, 4, 5, 6:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
	case 7, 8, 9:
		panic(http.ErrAbortHandler)
	case 10, 11, 12:
		maps.Copy(w.Header(), answer.Header())
		if r.Method == http.MethodGet && r.Header.Get("Range") != "" {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)/2))
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body[:len(body)/2])
	default:
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// Ensure that all kinds read from a bucket as from a disk, also if single answers fail: gofakes3 is unsteady.
func TestConformanceOverABucket(t *testing.T) {
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			if name == "gofakes3" {
				b.server.Spoil(unsteady)
			}
			for _, d := range datasets() {
				if (testing.Short() || name != "gofakes3") && d.kind != "tar" && d.kind != "npy" {
					continue // under the race detector and on versitygw, a kind of several objects and one of one
				}
				t.Run(d.kind, func(t *testing.T) {
					sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
						folder := t.TempDir()
						want, files := d.make(t, folder)
						there := map[string]bool{}
						sync := func(t *testing.T) { // keys are paths, so that errors name the files
							t.Helper()
							now := map[string]bool{}
							err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
								if err != nil || e.IsDir() {
									return err
								}
								data, err := os.ReadFile(path)
								if err != nil {
									return err
								}
								now[path] = true
								if !there[path] || slices.Contains(files, path) {
									b.put(t, path[1:], data)
								}
								return nil
							})
							fatal.If(t, err)
							for path := range there {
								if !now[path] {
									b.remove(t, path[1:])
								}
							}
							there = now
						}
						sync(t)
						return sourcetest.Fixture{Want: want, Files: files, Sync: sync, Open: func(*testing.T) (source.Source, error) {
							settings := mergedWith(mergedWith(d.extra, "kind", d.kind), "path", b.at+folder+d.path)
							settings["remote"] = mergedWith(b.remote, "stall", "1s")
							s, _, err := kinds.Whole(t.Context(), kinds.Open, settings, nil)
							return s, err
						}}
					})
				})
			}
		})
	}
}

// Ensure that a source opens although the server refuses the first request for each object, and for a list, for now.
func TestOpenOfABusyServer(t *testing.T) {
	b := servers(t)["gofakes3"](t)
	for _, d := range datasets() {
		t.Run(d.kind, func(t *testing.T) {
			folder := t.TempDir()
			want, _ := d.make(t, folder)
			b.server.Spoil(nil)
			b.upload(t, folder)
			var seen sync.Map
			b.server.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if _, again := seen.LoadOrStore(r.Method+r.URL.Path+r.Header.Get("Range"), true); !again {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				next.ServeHTTP(w, r)
			})
			s := fatal.Value(b.open(b.at+"/data"+d.path, mergedWith(d.extra, "kind", d.kind)))(t)
			defer s.Close()
			expect.Equal(t, s.Info().Samples, len(want), "samples")
		})
	}
}

func mergedWith(s source.Settings, key string, value any) source.Settings {
	merged := maps.Clone(s)
	if merged == nil {
		merged = source.Settings{}
	}
	merged[key] = value
	return merged
}

// Ensure that a bucket is listed as a folder is: in byte order, over several pages, by glob, with
// labels, without hidden names, and that an index keeps the listing.
func TestBucketIsListedAsAFolder(t *testing.T) {
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			folder, b := t.TempDir(), start(t)
			for i := range 1100 { // a page has 1,000
				write(t, fmt.Sprintf("%s/class-%d/%c/%04d.%s", folder, i%3, 'a'+i%5, i, []string{"jpg", "txt"}[i%2]),
					fmt.Appendf(nil, "content of %d", i))
			}
			write(t, folder+"/outside.jpg", []byte("x"))
			write(t, folder+"/class-1/.hidden.jpg", []byte("x"))
			write(t, folder+"/.git/x.jpg", []byte("x"))
			b.upload(t, folder)
			for _, settings := range []source.Settings{{}, {"labels": "folders", "glob": "**/*.txt"}, {"hidden": true}} {
				settings["kind"] = "dir"
				local := opened(t, mergedWith(settings, "path", folder))
				index := filepath.Join(t.TempDir(), "index")
				for range 2 { // the second time from the index
					remote := fatal.Value(b.open(b.at+"/data", mergedWith(settings, "index", index)))(t)
					defer remote.Close()
					if remote.Info().Samples != local.Info().Samples {
						t.Fatalf("%v: %d objects, %d files", settings, remote.Info().Samples, local.Info().Samples)
					}
					if got, want := sourcetest.Note(remote, "classes"), sourcetest.Note(local, "classes"); got != want {
						t.Errorf("%v: classes %s, want %s", settings, got, want)
					}
					for i := 0; i < local.Info().Samples; i += 97 {
						got, want := make([]byte, 512), make([]byte, 512)
						n, err := remote.Read(t.Context(), i, got)
						m, errLocal := local.Read(t.Context(), i, want)
						if err != nil || errLocal != nil || !bytes.Equal(got[:n], want[:m]) {
							t.Fatalf("%v: sample %d (%s, %s): %v %v", settings, i, remote.Where(i), local.Where(i), err, errLocal)
						}
					}
				}
				expect.Works(os.Stat(index))(t)
			}
		})
	}
}

// Ensure that wrong credentials are an error at once that says so and shows no secret.
func TestWrongCredentials(t *testing.T) {
	start := servers(t)["versitygw"]
	if start == nil {
		return // gofakes3 checks no signature; make test runs this test
	}
	b := start(t)
	b.put(t, "data/records", make([]byte, 100))
	open := func() error {
		s, err := b.open(b.at+"/data/records", source.Settings{"kind": "raw", "sample_bytes": 10})
		if err == nil {
			s.Close()
		}
		return err
	}
	fatal.If(t, open())
	for _, c := range []struct{ name, value, want string }{
		{"AWS_SECRET_ACCESS_KEY", "another-secret-than-that", "credentials"},
		{"AWS_ACCESS_KEY_ID", "AKIAUNKNOWN", "credentials"},
		{"AWS_REGION", "us-other-9", "region"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			begun := time.Now()
			err := open()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v; want an error about %s without a secret", err, c.want)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("the error came after %v", took)
			}
		})
	}
}
