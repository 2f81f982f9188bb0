// Package sourcetest is the test suite for all kinds of source.
package sourcetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

	"go.uber.org/goleak"
)

// Fixture is a dataset on disk, and its expected samples.
type Fixture struct {
	// Open opens a new source for it.
	Open func(t *testing.T) (source.Source, error)
	// Want are the samples that Read must return: at least 3, so that a wrong order shows.
	Want [][]byte
	// Files are the files that the data of sample 0 is read from. The suite rewrites, truncates and
	// removes them.
	Files []string
	// Damage changes bytes of sample 0, but neither size nor time of its file. Read must then
	// return ErrCorrupt. nil: the format has no checksums.
	Damage func(t *testing.T)
	// Sync copies changes of Files to the server that the source reads from. nil: it reads the files. A
	// server may give a file that was only touched the same tag, so the suite does not ask for another one.
	Sync func(t *testing.T)
	// Late says that the source checks files when it reads them, not when it opens. A changed file
	// then keeps the fingerprint, and Read refuses it.
	Late bool
}

// Run runs the suite. Each call of fixture makes a new Fixture in its own folder.
func Run(t *testing.T, fixture func(t *testing.T) Fixture) {
	tests := []struct {
		name string
		test func(t *testing.T, f Fixture)
	}{
		{"reads every sample", readsAll},
		{"describes itself", describes},
		{"same fingerprint for the same files", fingerprint},
		{"bad index", badIndex},
		{"short buffer", shortBuffer},
		{"cancelled context", cancelled},
		{"many goroutines", concurrent},
		{"closed", closed},
		{"closed while reading", closedWhileReading},
		{"changed file", changedFile},
		{"replaced file", replacedFile},
		{"grown file", grownFile},
		{"truncated file", truncatedFile},
		{"removed file", removedFile},
		{"damaged file", damagedFile},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) }) // runs last: after the Close of sources
			test.test(t, fixture(t))
		})
	}
}

func (f Fixture) sync(t *testing.T) {
	t.Helper()
	if f.Sync != nil {
		f.Sync(t)
	}
}

func open(t *testing.T, f Fixture) source.Source {
	t.Helper()
	s, err := f.Open(t)
	fatal.If(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// read reads a sample into a buffer with a guard after it.
func read(s source.Source, i int) ([]byte, error) {
	n, err := s.Size(i)
	if err != nil {
		return nil, err
	}
	buffer := bytes.Repeat([]byte{0xA5}, n+16)
	got, err := s.Read(context.Background(), i, buffer[:n])
	if err != nil {
		return nil, err
	}
	if got != n || !bytes.Equal(buffer[n:], bytes.Repeat([]byte{0xA5}, 16)) {
		return nil, fmt.Errorf("size %d, read %d, or bytes after the buffer were written", n, got)
	}
	return buffer[:n], nil
}

func wantAll(t *testing.T, s source.Source, f Fixture) {
	t.Helper()
	for _, i := range rand.Perm(len(f.Want)) {
		if got, err := read(s, i); err != nil || !bytes.Equal(got, f.Want[i]) {
			t.Fatalf("sample %d: %d bytes, %v; want %d", i, len(got), err, len(f.Want[i]))
		}
	}
}

func readsAll(t *testing.T, f Fixture) {
	if len(f.Want) < 3 || len(f.Files) == 0 {
		t.Fatalf("a fixture of %d samples and %d files shows too little", len(f.Want), len(f.Files))
	}
	s := open(t, f)
	wantAll(t, s, f)
	large := make([]byte, 1<<20) // a buffer larger than the sample is allowed
	if n, err := s.Read(context.Background(), 1, large); err != nil || !bytes.Equal(large[:n], f.Want[1]) {
		t.Errorf("into a larger buffer: %d bytes, %v", n, err)
	}
}

func describes(t *testing.T, f Fixture) {
	s := open(t, f)
	info := s.Info()
	if info.Kind == "" || info.Samples != len(f.Want) || len(info.Fingerprint) == 0 ||
		len(info.Fingerprint) > 64 || len(info.Schema.Fields) == 0 {
		t.Fatalf("%+v for %d samples", info, len(f.Want))
	}
	if !info.Schema.Variable && info.Schema.SampleBytes == 0 {
		t.Error("a fixed-size schema without a size")
	}
	for i, want := range f.Want {
		if _, err := info.Schema.Split(want); err != nil {
			t.Errorf("sample %d does not fit its schema: %v", i, err)
		}
		if largest := info.Schema.SampleBytes; largest != 0 && uint64(len(want)) > largest {
			t.Errorf("sample %d has %d bytes, the schema says at most %d", i, len(want), largest)
		}
		if where := s.Where(i); !slices.ContainsFunc(f.Files,
			func(file string) bool { return i != 0 || strings.Contains(where, file) }) || where == "" {
			t.Errorf("sample %d is %q, in none of the files %q", i, where, f.Files)
		}
	}
	if s.Where(-1) != "" || s.Where(len(f.Want)) != "" {
		t.Error("Where of an invalid index is not empty")
	}
}

func fingerprint(t *testing.T, f Fixture) {
	first := open(t, f).Info().Fingerprint
	expect.Equal(t, open(t, f).Info().Fingerprint, first, "the fingerprint later")
	if f.Sync != nil {
		return
	}
	touch(t, f.Files[0])
	if f.Late {
		wantChanged(t, open(t, f))
		return
	}
	if changed := open(t, f).Info().Fingerprint; changed == first {
		t.Errorf("%q before and after %s was touched", first, f.Files[0])
	}
}

// touch changes a file's time of modification.
func touch(t *testing.T, path string) {
	t.Helper()
	fatal.If(t, os.Chtimes(path, time.Time{}, time.Now().Add(3*time.Second)))
}

func badIndex(t *testing.T, f Fixture) {
	s := open(t, f)
	for _, i := range []int{-1, len(f.Want), len(f.Want) + 1, -1 << 63, 1<<63 - 1} {
		if _, err := s.Size(i); !errors.Is(err, source.ErrIndex) {
			t.Errorf("size of %d: %v", i, err)
		}
		if _, err := s.Read(context.Background(), i, make([]byte, 1<<20)); !errors.Is(err, source.ErrIndex) {
			t.Errorf("read of %d: %v", i, err)
		}
	}
}

func shortBuffer(t *testing.T, f Fixture) {
	s := open(t, f)
	for i, want := range f.Want {
		if len(want) == 0 {
			continue
		}
		if _, err := s.Read(context.Background(), i, make([]byte, len(want)-1)); !errors.Is(err, source.ErrShort) {
			t.Errorf("sample %d into %d of %d bytes: %v", i, len(want)-1, len(want), err)
		}
	}
}

func cancelled(t *testing.T, f Fixture) {
	s := open(t, f)
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("had enough")
	cancel(cause)
	expect.Fails(s.Read(ctx, 0, make([]byte, 1<<20)))(t, cause)
	wantAll(t, s, f) // and the source still works
}

func concurrent(t *testing.T, f Fixture) {
	s := open(t, f)
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 5 {
				for _, i := range rand.Perm(len(f.Want)) {
					if got, err := read(s, i); err != nil || !bytes.Equal(got, f.Want[i]) {
						t.Errorf("sample %d: %d bytes, %v", i, len(got), err)
						return
					}
				}
			}
		})
	}
	readers.Wait()
}

func closed(t *testing.T, f Fixture) {
	s := open(t, f)
	for range 2 {
		expect.NoError(t, s.Close())
	}
	expect.Fails(s.Read(context.Background(), 0, make([]byte, 1<<20)))(t, source.ErrClosed)
	if info := s.Info(); info.Samples != len(f.Want) {
		t.Errorf("a closed source has another Info: %+v", info)
	}
}

func closedWhileReading(t *testing.T, f Fixture) {
	s := open(t, f)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				got, err := read(s, 0)
				if errors.Is(err, source.ErrClosed) {
					return
				}
				if err != nil || !bytes.Equal(got, f.Want[0]) {
					t.Errorf("%d bytes, %v", len(got), err)
					return
				}
			}
		})
	}
	time.Sleep(2 * time.Millisecond)
	expect.NoError(t, s.Close())
	readers.Wait()
}

// wantChanged checks that a read returns ErrChanged, never other bytes.
func wantChanged(t *testing.T, s source.Source) {
	t.Helper()
	if got, err := read(s, 0); !errors.Is(err, source.ErrChanged) {
		t.Errorf("%d bytes, %v; want ErrChanged", len(got), err)
	}
}

func changedFile(t *testing.T, f Fixture) {
	s := open(t, f)
	f.change(t, func(data []byte) []byte {
		for k := range data {
			data[k] ^= 0xFF
		}
		return data
	})
	wantChanged(t, s)
	again, err := f.Open(t) // a kind with checksums or end marks refuses these bytes
	if err != nil {
		return
	}
	defer again.Close()
	if !f.Late && again.Info().Fingerprint == s.Info().Fingerprint {
		t.Errorf("other bytes have the same fingerprint %q", s.Info().Fingerprint)
	}
}

// A local file that was replaced by one of the same size and time of modification has changed for what this machine knows
// a source by. Other machines have the same files. Another mode or a hard link is no change.
func replacedFile(t *testing.T, f Fixture) {
	s := open(t, f)
	before := s.Info()
	if before.Traffic != nil {
		return // objects have tags
	}
	for k, path := range f.Files {
		info, err := os.Stat(path)
		fatal.If(t, err)
		link := filepath.Join(t.TempDir(), fmt.Sprint(k))
		fatal.If(t, errors.Join(os.Chmod(path, 0o640), os.Link(path, link), os.Chmod(path, info.Mode())))
	}
	wantAll(t, s, f)
	local := func() string {
		again := open(t, f)
		wantAll(t, again, f)
		info := again.Info()
		if info.Fingerprint != before.Fingerprint || len(info.Local()) > 64 {
			t.Errorf("it is %q, and was %q", info.Local(), before.Local())
		}
		return info.Local()
	}
	expect.Equal(t, local(), before.Local(), "after chmod and ln")
	for _, path := range f.Files {
		data, err := os.ReadFile(path)
		fatal.If(t, err)
		Replace(t, path, data)
	}
	if now := local(); now == before.Local() {
		t.Errorf("replaced, it is still %q", now)
	}
}

// Replace replaces a file by another one of the same time of modification.
func Replace(t *testing.T, path string, data []byte) {
	t.Helper()
	before, err := os.Stat(path)
	fatal.If(t, err)
	old, err := source.StampOf(path)
	fatal.If(t, err)
	if old.BornNs == 0 {
		t.Skip("NOT TESTED HERE: this file system does not say when a file was created")
	}
	for other := path + ".other"; ; { // the clock of a file system may take milliseconds for a step
		fatal.If(t, errors.Join(os.WriteFile(other, data, 0o600), os.Chtimes(other, time.Time{}, before.ModTime())))
		now, err := source.StampOf(other)
		fatal.If(t, err)
		if now.BornNs == old.BornNs {
			err = os.Remove(other)
		} else {
			err = os.Rename(other, path)
		}
		fatal.If(t, err)
		if now.BornNs != old.BornNs {
			return
		}
	}
}

func grownFile(t *testing.T, f Fixture) {
	s := open(t, f)
	f.change(t, func(data []byte) []byte { return append(data, "more"...) })
	wantChanged(t, s)
}

func truncatedFile(t *testing.T, f Fixture) {
	s := open(t, f)
	f.change(t, func(data []byte) []byte { return data[:1] })
	wantChanged(t, s)
}

// change writes other bytes to the files in place, and changes their times.
func (f Fixture) change(t *testing.T, edit func(data []byte) []byte) {
	t.Helper()
	for _, path := range f.Files {
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, edit(data), 0o600)
		}
		fatal.If(t, err)
		touch(t, path)
	}
	f.sync(t)
}

// After the removal of its files a source may read from open files or return an error with the
// name. It must not hang or return other bytes.
func removedFile(t *testing.T, f Fixture) {
	s := open(t, f)
	for _, path := range f.Files {
		fatal.If(t, os.Remove(path))
	}
	f.sync(t)
	got, err := read(s, 0)
	switch {
	case err == nil && bytes.Equal(got, f.Want[0]):
	case err != nil && strings.Contains(err.Error(), f.Files[0]):
	default:
		t.Errorf("%d bytes, %v; want the sample, or an error that names %s", len(got), err, f.Files[0])
	}
}

func damagedFile(t *testing.T, f Fixture) {
	if f.Damage == nil {
		return // without checksums this kind cannot detect damage
	}
	s := open(t, f)
	f.Damage(t)
	f.sync(t)
	if got, err := read(s, 0); !errors.Is(err, source.ErrCorrupt) {
		t.Errorf("%d bytes, %v; want ErrCorrupt", len(got), err)
	}
	if got, err := read(s, len(f.Want)-1); err != nil || !bytes.Equal(got, f.Want[len(f.Want)-1]) {
		t.Errorf("another sample: %d bytes, %v", len(got), err)
	}
}
