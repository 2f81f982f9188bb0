package kinds_test

import (
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
)

// Ensure that a list of many objects takes the memory of its index and little more, and that the index keeps it:
// the next time nothing is listed.
func TestManyObjects(t *testing.T) {
	s3test.Environment(t)
	const objects = 300_000
	l := &s3test.Lister{Objects: objects}
	server := httptest.NewServer(l)
	defer server.Close()
	settings := source.Settings{"kind": "dir", "path": "s3://many/data", "labels": "folders",
		"index": filepath.Join(t.TempDir(), "index"), "remote": map[string]any{"endpoint": server.URL}}
	live := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	fingerprint := ""
	for round := range 2 {
		before := live()
		s, err := kinds.Open(t.Context(), settings)
		if err != nil {
			t.Fatal(err)
		}
		// Size, tag, end of the name, label: 32 bytes, and the name.
		each := float64(live()-before) / objects
		if want := float64(32 + len(l.Name(0)) - len("data/")); each > want+8 {
			t.Errorf("round %d: %.1f bytes an object stay in memory, of which %.0f are of the index", round, each, want)
		}
		info := s.Info()
		if info.Samples != objects || round > 0 && info.Fingerprint != fingerprint {
			t.Errorf("round %d: %d samples, %s", round, info.Samples, info.Fingerprint)
		}
		fingerprint = info.Fingerprint
		for _, i := range []int{0, 12_345, objects - 1} {
			if size, err := s.Size(i); err != nil || size < 100_000 || size > 101_400 {
				t.Errorf("sample %d: %d bytes, %v", i, size, err)
			}
			if got, want := s.Where(i), "s3://many/"+l.Name(i); got != want {
				t.Errorf("sample %d is %s, want %s", i, got, want)
			}
		}
		s.Close()
	}
	if pages := l.Listed.Load(); pages != objects/1000 {
		t.Errorf("%d pages were listed", pages)
	}
}
