// Package intime bounds how long calls of a file on a disk take: then a call returns an error, and its caller goes on.
package intime

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHangs is returned when a call gets no answer in time, and at once while an earlier call has not returned.
var ErrHangs = errors.New("the disk does not answer")

// endTime bounds a Sync, which writes all that the system holds of the file. Tests shorten it.
var endTime = 30 * time.Second

// bytesPerSecond is what a disk must give beyond the timeout: large samples take longer.
const bytesPerSecond = 16 << 20

// File is a file whose calls take a bounded time. No call of the system can end a read that hangs in the kernel. So
// each call that may wait for the disk has a goroutine and memory of its own, which a call that is given up leaves
// behind. While one is left behind, the other calls fail at once. So their number is bounded by that of the calls at
// one time, and none that returns late writes over a newer one.
//
// Reads of what the page cache has go straight to the caller's memory (RWF_NOWAIT), and need neither goroutine nor copy.
// Those from the disk are long beside both.
type File struct {
	file    disk
	fd      int // for reads that do not wait; -1: the file has none
	timeout time.Duration
	waits   atomic.Bool // the file system knows no reads that do not wait
	buffers sync.Pool   // of *[]byte

	mu     sync.Mutex    // protects the fields below
	late   int           // calls that were given up and have not returned
	end    chan struct{} // closed when a call is given up: the others end too
	closed bool
}

type disk interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// Bound returns a file whose calls take timeout at most, and a second for each 16 MiB. It owns the file.
func Bound(file disk, timeout time.Duration) *File {
	f := &File{file: file, fd: -1, timeout: timeout, end: make(chan struct{})}
	f.buffers.New = func() any { return new([]byte) }
	if real, ok := file.(*os.File); ok {
		f.fd = int(real.Fd())
	}
	return f
}

// answer is what a call returns.
type answer struct {
	n   int
	err error
}

// call makes a call of the file in a goroutine, and waits for it. ok: it has returned, so its memory is free.
func (f *File) call(limit time.Duration, do func() (int, error)) (a answer, ok bool) {
	f.mu.Lock()
	end, late := f.end, f.late
	f.mu.Unlock()
	if late > 0 {
		return answer{err: fmt.Errorf("%w: %d earlier calls have not returned", ErrHangs, late)}, false
	}
	answered, givenUp := make(chan answer, 1), false // mu protects givenUp
	go func() {
		n, err := do()
		f.mu.Lock()
		defer f.mu.Unlock()
		if answered <- (answer{n, err}); givenUp {
			f.returned()
		}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a, true
	case <-timer.C:
	case <-end:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case a := <-answered:
		return a, true
	default:
	}
	givenUp = true
	if f.late++; f.late == 1 {
		close(f.end)
	}
	return answer{err: fmt.Errorf("%w: a call has taken more than %v (timeout)", ErrHangs, limit)}, false
}

// returned notes that a call that was given up has returned. The caller holds mu.
func (f *File) returned() {
	if f.late--; f.late > 0 {
		return
	}
	if f.end = make(chan struct{}); f.closed {
		_ = f.file.Close() // Close has returned ErrHangs
	}
}

func (f *File) limit(n int) time.Duration {
	return f.timeout + time.Duration(n)*time.Second/bytesPerSecond
}

func (f *File) take(n int) *[]byte {
	b := f.buffers.Get().(*[]byte)
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	return b
}

// ReadAt is part of io.ReaderAt. Errors: ErrHangs, those of the file.
func (f *File) ReadAt(p []byte, at int64) (int, error) {
	there := f.present(p, at)
	if there == len(p) {
		return there, nil
	}
	rest := f.take(len(p) - there)
	a, ok := f.call(f.limit(len(*rest)), func() (int, error) { return f.file.ReadAt(*rest, at+int64(there)) })
	if ok {
		copy(p[there:], (*rest)[:a.n])
		f.buffers.Put(rest)
	}
	return there + a.n, a.err
}

// present reads what it can get without waiting for the disk.
func (f *File) present(p []byte, at int64) int {
	if f.fd < 0 || f.waits.Load() {
		return 0
	}
	n, err := unix.Preadv2(f.fd, [][]byte{p}, at, unix.RWF_NOWAIT)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		f.waits.Store(true)
	}
	return max(n, 0)
}

// WriteAt is part of io.WriterAt. Errors: ErrHangs, those of the file.
func (f *File) WriteAt(p []byte, at int64) (int, error) {
	own := f.take(len(p))
	copy(*own, p)
	a, ok := f.call(f.limit(len(p)), func() (int, error) { return f.file.WriteAt(*own, at) })
	if ok {
		f.buffers.Put(own)
	}
	return a.n, a.err
}

// Sync writes what the system holds of the file to the disk, for at most 30 seconds.
func (f *File) Sync() error {
	a, _ := f.call(endTime, func() (int, error) { return 0, f.file.Sync() })
	return a.err
}

// Stat describes the file.
func (f *File) Stat() (os.FileInfo, error) {
	real, ok := f.file.(*os.File)
	if !ok {
		return nil, errors.ErrUnsupported // a stand-in of tests
	}
	return real.Stat()
}

// Close closes the file. ErrHangs: once the calls that were given up have returned.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.late > 0 {
		return fmt.Errorf("%w: it stays open until %d calls have returned", ErrHangs, f.late)
	}
	return f.file.Close()
}
