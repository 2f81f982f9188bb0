package dir_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

func numbered(t testing.TB, n int) (root string) {
	contents := map[string]string{}
	for i := range n {
		contents[fmt.Sprintf("%03d", i)] = strings.Repeat(fmt.Sprint(i, " "), 1000)
	}
	return write(t, contents)
}

// No file is closed during a read, however few are kept. As many stay open as the setting says, and
// none after Close.
func TestDescriptors(t *testing.T) {
	const files = 40
	root := numbered(t, files)
	for _, kept := range []int{0, 1, 2, 7, files, 1000} {
		before := len(sourcetest.Descriptors(t, ""))
		s := mustOpen(t, root, source.Settings{"descriptors": kept})
		var readers sync.WaitGroup
		for range 8 {
			readers.Go(func() {
				for range 500 {
					i := rand.IntN(files)
					if got, err := readAll(s, i); err != nil || string(got) != strings.Repeat(fmt.Sprint(i, " "), 1000) {
						t.Errorf("%d kept, sample %d: %d bytes, %v", kept, i, len(got), err)
						return
					}
				}
			})
		}
		readers.Wait()
		expect.Equal(t, len(sourcetest.Descriptors(t, ""))-before, min(kept, files), "%d kept: open files", kept)
		s.Close()
		expect.Equal(t, len(sourcetest.Descriptors(t, ""))-before, 0, "%d kept: open files after Close", kept)
	}
}

// By default all files of a small tree stay open, and none of a large one.
func TestDescriptorsByDefault(t *testing.T) {
	for files, want := range map[int]int{256: 256, 257: 0} {
		root := numbered(t, files)
		before := len(sourcetest.Descriptors(t, ""))
		s := mustOpen(t, root, nil)
		for i := range files {
			fatal.Value(readAll(s, i))(t)
		}
		expect.Equal(t, len(sourcetest.Descriptors(t, ""))-before, want, "open files of %d", files)
	}
}

// Each read checks its kept file. A kept file that was replaced keeps its bytes. One that is not
// kept, or was changed, is refused until it is the same again.
func TestKeptFilesAreChecked(t *testing.T) {
	for _, kept := range []int{0, 5} {
		root := write(t, map[string]string{"1": "one", "2": "two"})
		path := filepath.Join(root, "1")
		s := mustOpen(t, root, source.Settings{"descriptors": kept})
		if got, err := readAll(s, 0); string(got) != "one" {
			t.Fatalf("%q, %v", got, err)
		}
		fatal.If(t, os.Rename(path, path+".old"))
		add(t, path, "ONE")
		touch(t, path)
		got, err := readAll(s, 0)
		if kept == 0 && !errors.Is(err, source.ErrChanged) || kept > 0 && (err != nil || string(got) != "one") {
			t.Errorf("%d kept, replaced: %q, %v", kept, got, err)
		}
		fatal.If(t, os.Rename(path+".old", path))
		info := fatal.Value(os.Stat(path))(t)
		touch(t, path)
		if got, err := readAll(s, 0); !errors.Is(err, source.ErrChanged) || !strings.Contains(err.Error(), path) {
			t.Errorf("%d kept, touched: %q, %v", kept, got, err)
		}
		fatal.If(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		if got, err := readAll(s, 0); string(got) != "one" {
			t.Errorf("%d kept, as it was: %q, %v", kept, got, err)
		}
		sourcetest.Replace(t, path, []byte("ONE"))
		got, err = readAll(s, 0)
		if kept == 0 && (!errors.Is(err, source.ErrChanged) || !strings.Contains(err.Error(), "another file has replaced "+path)) ||
			kept > 0 && (err != nil || string(got) != "one") {
			t.Errorf("%d kept, replaced, with the same time: %q, %v", kept, got, err)
		}
	}
}

// A refused file is not kept: when the right file has the name again, reads succeed.
func TestRefusedFilesAreNotKept(t *testing.T) {
	root := write(t, map[string]string{"1": "one"})
	path := filepath.Join(root, "1")
	s := mustOpen(t, root, source.Settings{"descriptors": 5})
	fatal.If(t, os.Rename(path, path+".old"))
	add(t, path, "other")
	expect.Fails(readAll(s, 0))(t, source.ErrChanged)
	fatal.If(t, os.Rename(path+".old", path))
	if got, err := readAll(s, 0); string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
}

// A full table of descriptors is an error that says so, and passes when descriptors are free again.
// Before that, kept files are closed.
func TestFullTable(t *testing.T) {
	root := numbered(t, 20)
	none := mustOpen(t, root, source.Settings{"descriptors": 0})
	some := mustOpen(t, root, source.Settings{"descriptors": 3})
	for i := range 3 {
		fatal.Value(readAll(some, i))(t)
	}
	var limit unix.Rlimit
	fatal.If(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = uint64(len(sourcetest.Descriptors(t, "")) + 10)
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	var taken []int
	room := func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
		taken = nil
	}
	defer room()
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.EMFILE {
			break
		}
		fatal.If(t, err)
		taken = append(taken, fd)
	}
	_, err := readAll(none, 5)
	if !errors.Is(err, unix.EMFILE) ||
		!strings.Contains(err.Error(),
			fmt.Sprintf("%s/005: too many open files: this process may have %d files open; raise the limit (ulimit -n", root,
				low.Cur)) {
		t.Error(err)
	}
	expect.Fails(open(root, nil))(t, unix.EMFILE)
	for i := range 20 {
		if got, err := readAll(some, i); err != nil || !strings.HasPrefix(string(got), fmt.Sprint(i)) {
			t.Errorf("sample %d, though files could be given up: %v", i, err)
		}
	}
	room()
	for i := range 20 {
		if got, err := readAll(none, i); err != nil || !strings.HasPrefix(string(got), fmt.Sprint(i)) {
			t.Errorf("sample %d, with room again: %v", i, err)
		}
	}
}
