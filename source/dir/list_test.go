package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	_ "github.com/stocached/stocached/source/s3"
	"github.com/stocached/stocached/source/s3/s3test"
)

// keep sets how much of a list is in memory.
func keep(t *testing.T, bytes int) {
	before := keptBytes
	keptBytes = bytes
	t.Cleanup(func() { keptBytes = before })
}

func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Ensure that a list of many objects needs no memory that grows with their number: while it is made, when it is open,
// and when its index is read. A page that the server refuses for now is asked for again, it
// alone.
func TestMemoryOfALongList(t *testing.T) {
	s3test.Environment(t)
	keep(t, 1<<20)
	const objects = 100_000 // their names and sizes take 16 MB in memory
	l := &s3test.Lister{Objects: objects}
	before, most, busy := live(), atomic.Uint64{}, atomic.Bool{}
	look := func() { most.Store(max(most.Load(), live())) }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.Listed.Load()%33 == 0 {
			look()
		}
		if l.Listed.Load() == 3 && busy.CompareAndSwap(false, true) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		l.ServeHTTP(w, r)
	}))
	defer server.Close()
	// A page of the list of 1,000 objects, and what a connection needs.
	limit := uint64(2*keptBytes + 4<<20)
	folder := t.TempDir()
	for _, note := range []string{"written", "read from"} {
		s, err := Kind.Open(t.Context(), source.Settings{"path": "s3://many/data", "labels": "folders",
			"index": filepath.Join(folder, "index"), "remote": map[string]any{"endpoint": server.URL}})
		fatal.If(t, err)
		look()
		if got := most.Load() - before; got > limit {
			t.Errorf("%s: %d bytes of memory for %d objects, more than %d", note, got, objects, limit)
		}
		expect.Equal(t, s.Info().Samples, objects, "%s: samples", note)
		texts := map[string]string{}
		for _, n := range s.Info().Notes {
			texts[n.Name] = n.Text
		}
		if !strings.HasPrefix(texts["index"], note) || !strings.HasPrefix(texts["list"], "in a file") {
			t.Errorf("%v", texts)
		}
		for _, i := range []int{0, 12_345, objects - 1} {
			if got, want := s.Where(i), "s3://many/"+l.Name(i); got != want {
				t.Errorf("sample %d is %s, want %s", i, got, want)
			}
			if size, err := s.Size(i); err != nil || size < 100_000 || size > 101_400 {
				t.Errorf("sample %d: %d bytes, %v", i, size, err)
			}
		}
		s.Close()
	}
	expect.Equal(t, l.Listed.Load(), int64(objects/1000), "pages that were listed")
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// Ensure that a bucket gives the same samples whatever the order in which it lists them, if it repeats names too:
// with lists in memory, and with lists that are sorted in files.
func TestListingInAnyOrder(t *testing.T) {
	s3test.Environment(t)
	var sorted []string
	for _, class := range []string{"a", "a-b", "a.x", "b", "B", "ä"} {
		for k := range 60 {
			sorted = append(sorted, fmt.Sprintf("data/%s/%03d.bin", class, k))
		}
	}
	slices.Sort(sorted)
	random := rand.New(rand.NewPCG(1, 2))
	shuffled := slices.Clone(sorted)
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	byFolder := slices.Clone(sorted) // the byte of / comes before all others
	slices.SortFunc(byFolder, func(a, b string) int {
		return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
	})
	backwards := slices.Clone(sorted)
	slices.Reverse(backwards)
	var twice []string // the last name of a page is the first one of the next
	for k, key := range sorted {
		if twice = append(twice, key); k%9 == 8 {
			twice = append(twice, key)
		}
	}
	for _, kept := range []int{keptBytes, 3000} {
		for name, keys := range map[string][]string{"sorted": sorted, "folder by folder": byFolder, "backwards": backwards,
			"shuffled": shuffled, "names twice": twice, "all twice": slices.Concat(shuffled, backwards)} {
			t.Run(fmt.Sprintf("%s, %d kept", name, kept), func(t *testing.T) {
				keep(t, kept)
				l := &s3test.Lister{Objects: len(keys), Key: func(i int) string { return keys[i] }, Page: 10}
				server := httptest.NewServer(l)
				defer server.Close()
				s, err := Kind.Open(t.Context(), source.Settings{"path": "s3://many/data", "labels": "folders",
					"remote": map[string]any{"endpoint": server.URL}})
				fatal.If(t, err)
				defer s.Close()
				var got []string
				for i := range s.Info().Samples {
					got = append(got, strings.TrimPrefix(s.Where(i), "s3://many/"))
				}
				expect.Slice(t, got, sorted, "")
				wantLabel := func(i int) int64 {
					class := strings.Split(sorted[i], "/")[1]
					return int64(slices.Index([]string{"B", "a", "a-b", "a.x", "b", "ä"}, class))
				}
				for i := 0; i < len(got); i += 31 {
					if f, err := s.(*tree).file(i); err != nil || f.label != wantLabel(i) {
						t.Errorf("sample %d, %s, has the label %d, %v", i, got[i], f.label, err)
					}
				}
			})
		}
	}
}

// Ensure that a long list is the same list: in memory, in a file, and in an index, with names of runs that are
// merged.
func TestListsAlike(t *testing.T) {
	root := filepath.Join(t.TempDir(), "tree")
	random := rand.New(rand.NewPCG(1, 2))
	for k := range 700 {
		path := filepath.Join(root, fmt.Sprintf("%x", random.IntN(40)), strings.Repeat("deep/", random.IntN(3)),
			fmt.Sprintf("%d", random.IntN(1e6)))
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fatal.If(t, os.WriteFile(path, make([]byte, k%300), 0o600))
	}
	for _, labels := range []string{"none", "folders"} {
		var want []string
		for _, kept := range []int{keptBytes, 40, 3000} {
			for _, index := range []bool{false, true, true} {
				settings := source.Settings{"path": root, "labels": labels}
				if index {
					settings["index"] = fmt.Sprintf("%s.%s.%d", root, labels, kept)
				}
				t.Run(fmt.Sprint(labels, kept, index), func(t *testing.T) {
					keep(t, kept)
					s := fatal.Value(Kind.Open(t.Context(), settings))(t)
					defer s.Close()
					got := []string{s.Info().Fingerprint}
					for _, n := range s.Info().Notes {
						if n.Name == "bytes" || n.Name == "empty files" || n.Name == "classes" {
							got = append(got, n.Text)
						}
					}
					for i := range s.Info().Samples {
						size := fatal.Value(s.Size(i))(t)
						sample := make([]byte, size)
						fatal.Value(s.Read(t.Context(), i, sample))(t)
						got = append(got, fmt.Sprint(s.Where(i), " ", size, sample))
					}
					if want == nil {
						want = got
						if sorted := slices.IsSorted(got[len(got)-s.Info().Samples:]); !sorted {
							t.Error("the files are not sorted")
						}
					} else if !slices.Equal(got, want) {
						t.Errorf("%d files, want %d, or others", len(got), len(want))
					}
				})
			}
		}
	}
}

// Ensure that a list that fits nowhere is an error that says what to set, and that a list whose file was
// changed gives no other sample.
func TestListWithoutAFile(t *testing.T) {
	keep(t, 10)
	root := filepath.Join(t.TempDir(), "tree")
	fatal.If(t, os.Mkdir(root, 0o700))
	for k := range 40 {
		fatal.If(t, os.WriteFile(filepath.Join(root, fmt.Sprint(k)), []byte("x"), 0o600))
	}
	t.Setenv("TMPDIR", root+".missing")
	if _, err := Kind.Open(t.Context(), source.Settings{"path": root}); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "set TMPDIR") || !strings.Contains(err.Error(), "or index to a file") {
		t.Error(err)
	}
	index := root + ".index"
	s := fatal.Value(Kind.Open(t.Context(), source.Settings{"path": root, "index": index}))(t)
	defer s.Close()
	one := make([]byte, 1)
	fatal.Value(s.Read(t.Context(), 7, one))(t)
	good := fatal.Value(os.ReadFile(index))(t)
	garbage := slices.Concat(good[:indexHeader], bytes.Repeat([]byte{0xff}, len(good)-indexHeader))
	for name, content := range map[string][]byte{"cut off": good[:200], "empty": nil, "garbage": garbage} {
		t.Run(name, func(t *testing.T) {
			s := fatal.Value(Kind.Open(t.Context(), source.Settings{"path": root, "index": index}))(t)
			defer s.Close()
			was := s.(*tree).files.index.Stamp.ModifiedNs
			if err := os.WriteFile(index, content, 0o600); err != nil { // in place: not a rename, as ours
				t.Fatal(err)
			}
			fatal.If(t, os.Chtimes(index, time.Time{}, time.Unix(0, was)))
			expect.Fails(s.Read(context.Background(), 27, one))(t, source.ErrChanged)
			expect.Fails(s.Size(27))(t, source.ErrChanged)
			again := fatal.Value(Kind.Open(t.Context(), source.Settings{"path": root, "index": index}))(t)
			defer again.Close()
			if note := again.Info().Notes[len(again.Info().Notes)-1]; !strings.HasPrefix(note.Text, "written to") {
				t.Errorf("%+v", note)
			}
			if now, err := os.ReadFile(index); err != nil || !bytes.Equal(now, good) {
				t.Errorf("%d bytes of %d, %v", len(now), len(good), err)
			}
		})
	}
}
