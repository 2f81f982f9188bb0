package dir_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

func indexed(root string, more ...any) source.Settings {
	s := source.Settings{"index": root + ".index"}
	for k := 0; k < len(more); k += 2 {
		s[more[k].(string)] = more[k+1]
	}
	return s
}

// wantIndex opens a tree with its index and checks the note about it.
func wantIndex(t *testing.T, root string, settings source.Settings, note string, names ...string) source.Source {
	t.Helper()
	s := mustOpen(t, root, settings)
	sourcetest.WantNote(t, s, "index", note)
	if names != nil {
		wantNames(t, s, root, names...)
	}
	return s
}

// With an index, Open does not inspect the files. A missing or changed file is found when it is
// read.
func TestIndexIsUsed(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "a/2": "two", "b/3": "three"})
	first := wantIndex(t, root, indexed(root), "written to "+root+".index: there was none", "a/1", "a/2",
		"b/3").Info().Fingerprint
	if info, err := os.Stat(root + ".index"); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Truncate(filepath.Join(root, "a/2"), 1); err != nil { // in place: the folder does not change
		t.Fatal(err)
	}
	s := wantIndex(t, root, indexed(root), "read from", "a/1", "a/2", "b/3")
	expect.Equal(t, s.Info().Fingerprint, first, "")
	expect.Gives(s.Size(1))(t, 3)
	expect.Fails(readAll(s, 1))(t, source.ErrChanged)
	if got, err := readAll(s, 0); string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
}

// Created, removed and renamed files are found through their folder, and the index is written
// again.
func TestIndexOfAChangedTree(t *testing.T) {
	contents := map[string]string{"a/1": "one", "a/2": "two", "b/deep/3": "three"}
	for name, c := range map[string]struct {
		change func(root string) error
		folder string
		want   []string
	}{
		"added": {func(root string) error { return os.WriteFile(root+"/a/0", nil, 0o600) }, "/a",
			[]string{"a/0", "a/1", "a/2", "b/deep/3"}},
		"added deep": {func(root string) error { return os.WriteFile(root+"/b/deep/0", nil, 0o600) }, "/b/deep",
			[]string{"a/1", "a/2", "b/deep/0", "b/deep/3"}},
		"added on top": {func(root string) error { return os.WriteFile(root+"/0", nil, 0o600) }, "",
			[]string{"0", "a/1", "a/2", "b/deep/3"}},
		"removed": {func(root string) error { return os.Remove(root + "/a/1") }, "/a", []string{"a/2", "b/deep/3"}},
		"renamed": {func(root string) error { return os.Rename(root+"/a/1", root+"/a/9") }, "/a",
			[]string{"a/2", "a/9", "b/deep/3"}},
		"folder removed": {func(root string) error { return os.RemoveAll(root + "/b") }, "", []string{"a/1", "a/2"}},
	} {
		root := write(t, contents)
		before := wantIndex(t, root, indexed(root), "written").Info().Fingerprint
		time.Sleep(20 * time.Millisecond) // longer than the tick of a file system's clock
		fatal.If(t, c.change(root))
		if s := wantIndex(t, root, indexed(root), root+c.folder, c.want...); s.Info().Fingerprint == before {
			t.Errorf("%s: the fingerprint stayed", name)
		}
		wantIndex(t, root, indexed(root), "read from", c.want...)
	}
}

// An index belongs to one folder and one set of settings.
func TestForeignIndex(t *testing.T) {
	root, other := write(t, map[string]string{"a/1": "one", "b/2": "two"}), write(t,
		map[string]string{"a/1": "ONE", "b/2": "TWO"})
	path := root + ".index"
	add(t, root+".csv", "b/2,7\na/1,5\n")
	wantIndex(t, root, indexed(root), "there was none")
	for _, c := range []struct {
		root     string
		settings source.Settings
		want     []string
	}{
		{other, source.Settings{"index": path}, []string{"a/1", "b/2"}},
		{root, source.Settings{"index": path}, []string{"a/1", "b/2"}},
		{root, source.Settings{"index": path, "glob": "a/*"}, []string{"a/1"}},
		{root, source.Settings{"index": path, "hidden": true}, []string{"a/1", "b/2"}},
		{root, source.Settings{"index": path, "labels": "folders"}, []string{"a/1", "b/2"}},
		{root, source.Settings{"index": path, "manifest": root + ".csv"}, []string{"b/2", "a/1"}},
		{root, source.Settings{"index": path, "manifest": root + ".csv", "labels": "manifest"}, []string{"b/2", "a/1"}},
		{root, source.Settings{"index": path, "manifest": root + ".csv", "labels": "folders"}, []string{"b/2", "a/1"}},
	} {
		wantIndex(t, c.root, c.settings, "it was of another folder or of other settings", c.want...)
		wantIndex(t, c.root, c.settings, "read from", c.want...)
	}
	add(t, root+".csv", "a/1\n") // another manifest of the same name
	wantIndex(t, root, source.Settings{"index": path, "manifest": root + ".csv"}, "of other settings", "a/1")
	// Settings that do not change the files do not matter.
	wantIndex(t, root, source.Settings{"index": path, "manifest": root + ".csv", "descriptors": 0}, "read from", "a/1")
}

// Wrong bits and missing bytes anywhere in an index are detected. All of it has one checksum.
func TestDamagedIndex(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "b/2": "two"})
	path := root + ".index"
	want := wantIndex(t, root, indexed(root), "there was none", "a/1", "b/2").Info().Fingerprint
	good := fatal.Value(os.ReadFile(path))(t)
	check := func(what string, at int, bad []byte) {
		t.Helper()
		fatal.If(t, os.WriteFile(path, bad, 0o600))
		s, err := open(root, indexed(root))
		if err != nil {
			t.Fatalf("%s %d: %v", what, at, err)
		}
		defer s.Close()
		text := sourcetest.Note(s, "index")
		now := fatal.Value(os.ReadFile(path))(t)
		ours := len(bad) < 8 && bytes.HasPrefix(good, bad) || len(bad) >= 8 && string(bad[:8]) == string(good[:8])
		switch {
		case s.Info().Fingerprint != want || s.Info().Samples != 2:
			t.Fatalf("%s %d: %+v", what, at, s.Info())
		case ours && (!strings.Contains(text, "written to") || !bytes.Equal(now, good)):
			t.Fatalf("%s %d: %q, %d bytes at the path", what, at, text, len(now))
		case !ours && (!strings.Contains(text, "not written: "+path+" is no index and is not replaced") ||
			!bytes.Equal(now, bad)):
			t.Fatalf("%s %d: %q, and a user's file was changed", what, at, text)
		}
	}
	for at := 0; at < len(good); at += 5 {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		check("bit in byte", at, bad)
	}
	for n := 0; n < len(good); n += 5 {
		check("cut to", n, good[:n])
	}
	check("longer by", 1, append(bytes.Clone(good), 0))
	check("a user's file of", 9, []byte("important"))
}

// An index that cannot be written or read costs time, but no data.
func TestIndexInTheWay(t *testing.T) {
	root := write(t, map[string]string{"1": "one"})
	path := root + ".index"
	fatal.If(t, os.Mkdir(path, 0o700))
	wantIndex(t, root, indexed(root), "not written", "1")
	fatal.If(t, os.Remove(path))
	fatal.If(t, unix.Mkfifo(path, 0o600))
	wantIndex(t, root, indexed(root), "is not a regular file", "1")
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("what was in the way is gone: %v, %v", info, err)
	}
	fatal.If(t, os.Remove(path))
	elsewhere := root + ".elsewhere" // through a link, which stays one
	fatal.If(t, os.Symlink(elsewhere, path))
	add(t, elsewhere, "")
	wantIndex(t, root, indexed(root), "it was empty", "1")
	wantIndex(t, root, indexed(root), "read from", "1")
	expect.Gives(os.Readlink(path))(t, elsewhere)
	if left, err := filepath.Glob(root + ".index.*"); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// All of many concurrent opens of a tree succeed, and leave one complete index.
func TestIndexWrittenByMany(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "b/2": "two"})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s, err := open(root, indexed(root))
			if err != nil {
				t.Error(err)
				return
			}
			wantNames(t, s, root, "a/1", "b/2")
			s.Close()
		})
	}
	all.Wait()
	wantIndex(t, root, indexed(root), "read from", "a/1", "b/2")
	if left, err := filepath.Glob(root + ".index.*"); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// Files of killed writers are removed after an hour, and those of live ones are not.
func TestIndexSweeps(t *testing.T) {
	root := write(t, map[string]string{"1": "one"})
	old, young, other := root+".index.unfinished-1", root+".index.unfinished-2", root+".indexes"
	for _, path := range []string{old, young, other} {
		add(t, path, "x")
	}
	for _, path := range []string{old, other} {
		fatal.If(t, os.Chtimes(path, time.Time{}, time.Now().Add(-2*time.Hour)))
	}
	wantIndex(t, root, indexed(root), "written")
	expect.Fails(os.Stat(old))(t, os.ErrNotExist)
	for _, path := range []string{young, other} {
		expect.Works(os.Stat(path))(t)
	}
}
