package shm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func init() {
	children["hold-unnamed"] = func(args []string) error {
		s, err := Open(args[0], OpenOptions{})
		if err != nil {
			return err
		}
		fmt.Println("held")
		time.Sleep(time.Minute)
		return s.Close()
	}
}

// Ensure that List returns a directory's caches with their settings and sizes, invalid ones with
// the reason, and no other things.
func TestList(t *testing.T) {
	dir := tempDir(t)
	o := small()
	o.Dir, o.Reserve = dir, true
	s := create(t, o)
	o.Name, o.Reserve = "lazy", false
	lazy := create(t, o)
	if err := os.WriteFile(filepath.Join(dir, "junk"), []byte("no cache"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.Path(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	found, err := List(dir)
	if err != nil || len(found) != 3 {
		t.Fatalf("%+v, %v", found, err)
	}
	want(t, found[0].Err, ErrFormat, filepath.Join(dir, "junk"))
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

// Ensure that ListUnnamed returns caches without a name once, with all processes that hold them,
// and a path that Open takes.
func TestListUnnamed(t *testing.T) {
	s := create(t, Options{Samples: 3, SampleBytes: 10, Fingerprint: "mine"})
	find := func() *Listed {
		found, err := ListUnnamed()
		if err != nil {
			t.Fatal(err)
		}
		k := slices.IndexFunc(found, func(l Listed) bool { return l.UUID == s.Header.UUID })
		if k < 0 {
			t.Fatalf("not among %d", len(found))
		}
		if slices.ContainsFunc(found[k+1:], func(l Listed) bool { return l.UUID == s.Header.UUID }) {
			t.Error("listed twice")
		}
		return &found[k]
	}
	l := find()
	if l.Err != nil || !slices.Equal(l.PIDs, []int{os.Getpid()}) || l.Fingerprint != "mine" || l.Name != "" {
		t.Errorf("%+v", l)
	}
	open(t, l.Path, OpenOptions{UUID: &s.Header.UUID})
	cmd, _ := child("hold-unnamed", l.Path)
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	if pids := find().PIDs; len(pids) != 2 || !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("%v, the child is %d", pids, cmd.Process.Pid)
	}
}
