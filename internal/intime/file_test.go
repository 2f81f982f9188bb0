package intime

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ensure that reads give what those of the file give, also where the page cache has a part of it, and at its end.
func TestReads(t *testing.T) {
	path, content := filepath.Join(t.TempDir(), "a"), make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(content)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	real, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := Bound(real, time.Minute)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, pages := range [][2]int64{{0, 1 << 20}, {0, 1 << 19}, {1 << 19, 1 << 19}, {1 << 18, 1 << 19}} { // that leave the page cache
		for _, at := range []int64{0, 1000, 1<<20 - 5000, 1 << 20, 1 << 21} {
			if err := unix.Fadvise(int(real.Fd()), pages[0], pages[1], unix.FADV_DONTNEED); err != nil {
				t.Fatal(err)
			}
			dst := make([]byte, 600_000)
			n, err := f.ReadAt(dst, at)
			want := content[min(at, 1<<20):min(at+600_000, 1<<20)]
			if !bytes.Equal(dst[:n], want) || (n < len(dst)) != errors.Is(err, io.EOF) || n == len(dst) && err != nil {
				t.Errorf("at %d without %v: %d bytes, %v", at, pages, n, err)
			}
		}
	}
	if n, err := f.WriteAt([]byte("changed"), 5); n != 7 || err != nil {
		t.Error(n, err)
	}
	back := make([]byte, 7)
	if _, err := f.ReadAt(back, 5); err != nil || string(back) != "changed" {
		t.Errorf("%q, %v", back, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// slow is a file whose calls return when a test says so.
type slow struct{ begun, answers, closed chan struct{} }

func (s *slow) wait() { s.begun <- struct{}{}; <-s.answers }

func (s *slow) ReadAt(p []byte, _ int64) (int, error)  { s.wait(); return len(p), nil }
func (s *slow) WriteAt(p []byte, _ int64) (int, error) { s.wait(); return len(p), nil }
func (s *slow) Sync() error                            { s.wait(); return nil }
func (s *slow) Close() error                           { close(s.closed); return nil }

// Ensure that a call which hangs ends in time, and the others with it; that later ones do not begin; and that the file is
// closed once all have returned.
func TestCallsThatHang(t *testing.T) {
	defer func(was time.Duration) { endTime = was }(endTime)
	endTime = 10 * time.Millisecond
	s := &slow{make(chan struct{}, 9), make(chan struct{}), make(chan struct{})}
	f, ends := Bound(s, time.Hour), make(chan error)
	go func() { _, err := f.WriteAt([]byte{1}, 0); ends <- err }()
	<-s.begun
	if err := f.Sync(); !errors.Is(err, ErrHangs) {
		t.Error(err)
	}
	if err := <-ends; !errors.Is(err, ErrHangs) { // long before its own hour
		t.Error(err)
	}
	<-s.begun
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrHangs) || len(s.begun) > 0 {
		t.Errorf("%v, and %d more calls of the file", err, len(s.begun))
	}
	if err := f.Close(); !errors.Is(err, ErrHangs) {
		t.Error(err)
	}
	s.answers <- struct{}{}
	select {
	case <-s.closed:
		t.Error("closed below a call")
	default:
	}
	s.answers <- struct{}{}
	<-s.closed
}
