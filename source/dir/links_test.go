package dir_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/dir"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// Links to files and to folders are followed from any place.
func TestLinks(t *testing.T) {
	outside := write(t, map[string]string{"x/1": "one", "x/y/2": "two"})
	root := write(t, map[string]string{"3": "three", "file": "-> 3", "far": "-> " + outside + "/x/1", "cat": "-> " + outside + "/x", "again": "-> cat"})
	s := mustOpen(t, root, nil)
	wantNames(t, s, root, "3", "again/1", "again/y/2", "cat/1", "cat/y/2", "far", "file")
	for i, want := range []string{"three", "one", "two", "one", "two", "one", "three"} {
		if got, err := readAll(s, i); err != nil || string(got) != want {
			t.Errorf("%d: %q, %v", i, got, err)
		}
	}
	s = mustOpen(t, root, source.Settings{"labels": "folders"})
	sourcetest.WantNote(t, s, "classes", `["again","cat"]`)
	link := filepath.Join(filepath.Dir(root), "link")
	fatal.If(t, os.Symlink(root, link))
	wantNames(t, mustOpen(t, link, source.Settings{"glob": "3"}), link, "3")
}

// Links back to a folder above end there, and a note says so.
func TestCycles(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "a/up": "-> ..", "a/self": "-> .", "b/c/top": "-> ../../b"})
	s := mustOpen(t, root, nil)
	wantNames(t, s, root, "a/1")
	sourcetest.WantNote(t, s, "skipped", "3, the first is a/self (a link back to a folder above it)")
	// A link to a folder outside, in which the tree lies.
	root = write(t, map[string]string{"a/1": "one"})
	add(t, filepath.Join(root, "a/out"), "-> "+filepath.Dir(root))
	s = mustOpen(t, root, nil)
	wantNames(t, s, root, "a/1")
	sourcetest.WantNote(t, s, "skipped", "1, the first is a/out/tree (a link back to a folder above it)")
	// Two folders that link to each other: each is read once from each side.
	root = write(t, map[string]string{"a/1": "one", "b/2": "two", "a/b": "-> ../b", "b/a": "-> ../a"})
	wantNames(t, mustOpen(t, root, nil), root, "a/1", "a/b/2", "b/2", "b/a/1")
}

// A link to nothing, or to itself, is missing data. If the glob leaves it out, it is ignored.
func TestDangling(t *testing.T) {
	root := write(t, map[string]string{"1.jpg": "one", "2.jpg": "-> none", "3.png": "-> 3.png"})
	for glob, want := range map[string]string{"": ".", "*.jpg": "2.jpg", "*.png": "3.png"} {
		if _, err := open(root, source.Settings{"glob": glob}); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "a symbolic link to a missing or unreadable file") {
			t.Errorf("%s: %v", glob, err)
		}
	}
	wantNames(t, mustOpen(t, root, source.Settings{"glob": "1.*"}), root, "1.jpg")
}

// Special files are never opened: a FIFO would block, and a device may do anything.
func TestSpecial(t *testing.T) {
	root := write(t, map[string]string{"1": "one", "link": "-> /dev/zero"})
	fatal.If(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	t.Chdir(root) // for a short address of the socket
	l := fatal.Value(net.Listen("unix", "socket"))(t)
	defer l.Close()
	s := mustOpen(t, root, nil)
	wantNames(t, s, root, "1")
	sourcetest.WantNote(t, s, "skipped", "3, the first is fifo (a FIFO)")
	expect.Equal(t, sourcetest.Note(mustOpen(t, root, source.Settings{"glob": "1"}), "skipped"), "", "skipped what the glob left out")
	for _, glob := range []string{"fifo", "socket", "link"} {
		if _, err := open(root, source.Settings{"glob": glob}); !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%s: %v", glob, err)
		}
	}
}

// A FIFO or a folder that replaces a file after Open is a change, and blocks no read.
func TestBecameSpecial(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"FIFO":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		root := write(t, map[string]string{"1": "one"})
		s := mustOpen(t, root, nil)
		os.Remove(filepath.Join(root, "1"))
		fatal.If(t, take(filepath.Join(root, "1")))
		done := make(chan error, 1)
		go func() {
			_, err := readAll(s, 0)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, source.ErrChanged) || !strings.Contains(err.Error(), root) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the read hangs", name)
		}
	}
}

// An unreadable folder or file is an error with its name, the folder when the source is opened.
func TestUnreadable(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "b/2": "two"})
	folder, file := filepath.Join(root, "b"), filepath.Join(root, "a/1")
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		fatal.If(t, os.Chmod(path, mode))
	}
	as := func(do func()) {
		t.Helper()
		if os.Geteuid() == 0 { // root may read everything: become another user for a while
			fatal.If(t, syscall.Setreuid(-1, 65534))
			defer syscall.Setreuid(-1, 0)
		}
		do()
	}
	chmod(filepath.Dir(filepath.Dir(root)), 0o755)
	chmod(folder, 0)
	as(func() {
		expect.Fails(open(root, nil))(t, os.ErrPermission, folder)
	})
	chmod(folder, 0o755)
	chmod(file, 0)
	as(func() {
		s, err := open(root, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		expect.Fails(readAll(s, 0))(t, os.ErrPermission, file)
		if got, err := readAll(s, 1); string(got) != "two" {
			t.Errorf("the other file: %q, %v", got, err)
		}
	})
}

// Open ends with its context.
func TestCancelledOpen(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one"})
	add(t, root+".csv", "a/1\n")
	cause := errors.New("had enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	for _, settings := range []source.Settings{{"path": root}, {"path": root, "manifest": root + ".csv"}} {
		expect.Fails(dir.Kind.Open(ctx, settings))(t, cause)
	}
}
