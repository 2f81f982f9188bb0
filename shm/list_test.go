package shm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that List returns a directory's caches with their settings and sizes, invalid ones with
// the reason, and no other things.
func TestList(t *testing.T) {
	dir := tempDir(t)
	o := small()
	o.Dir, o.Reserve = dir, true
	s := create(t, o)
	o.Name, o.Reserve = "lazy", false
	lazy := create(t, o)
	fatal.If(t, os.WriteFile(filepath.Join(dir, "junk"), []byte("no cache"), 0o600))
	fatal.If(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	fatal.If(t, os.Symlink(s.Path(), filepath.Join(dir, "link")))
	found, err := List(dir)
	if err != nil || len(found) != 3 {
		t.Fatalf("%+v, %v", found, err)
	}
	expect.Error(t, found[0].Err, ErrFormat, filepath.Join(dir, "junk"))
	if found[0].FileBytes != 8 || found[0].Samples != 0 {
		t.Errorf("%+v", found[0])
	}
	for k, s := range map[int]*Segment{1: lazy, 2: s} {
		l := found[k]
		if allocated, _ := s.AllocatedBytes(); l.Err != nil || l.Path != s.Path() || l.UUID != s.Header.UUID ||
			l.Geometry != s.Geometry || l.Allocated != allocated || l.FileBytes != s.SegmentBytes {
			t.Errorf("%+v", l)
		}
	}
	if found[1].Allocated >= found[2].Allocated {
		t.Error("the lazy cache has all its pages")
	}
	if found, err := List(filepath.Join(dir, "none")); len(found) != 0 || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}
