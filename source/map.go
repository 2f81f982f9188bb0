package source

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Map is a read-only part of a file in memory. For a local file it uses page cache, which the kernel
// can drop, and no memory of the process. For an object it is a copy in memory of the process.
type Map struct {
	Bytes []byte // valid until Close; access it only within File.Look
	pages []byte
}

// Map maps n bytes from offset, n at least 1. The caller has checked that the file is long enough.
// Errors: ErrClosed, errors of the system with the path.
func (f *File) Map(ctx context.Context, offset int64, n int) (*Map, error) {
	if f.objects != nil {
		copied := make([]byte, n)
		return &Map{Bytes: copied}, f.readRemote(ctx, copied, offset)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.alive(); err != nil {
		return nil, err
	}
	skip := int(offset % int64(os.Getpagesize()))
	pages, err := unix.Mmap(int(f.f.Fd()), offset-int64(skip), n+skip, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: fmt.Sprintf("map %d bytes of", n), Path: f.Path, Err: err}
	}
	return &Map{Bytes: pages[skip:], pages: pages}, nil
}

// Forget gives the loaded pages back to the kernel. The next access reads them again.
func (m *Map) Forget() {
	if m.pages != nil {
		_ = unix.Madvise(m.pages, unix.MADV_DONTNEED)
	}
}

// Close unmaps. No access may be inflight.
func (m *Map) Close() error {
	if m == nil || m.pages == nil {
		return nil
	}
	err := unix.Munmap(m.pages)
	m.pages, m.Bytes = nil, nil
	return err
}

// Look is Access of mapped bytes of the file.
func (f *File) Look(work func()) error { return Access(f.Path, work) }

// Access runs work, which accesses mapped bytes of a file. If a page is gone because the file was
// truncated, it returns ErrChanged instead of ending the process. A page that cannot be read is
// ErrChanged too, because the kernel does not tell the difference. No other faults may occur in
// work.
func Access(path string, work func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			err = fmt.Errorf("%w: pages of %s cannot be read any more: it was truncated, or its disk fails", ErrChanged, path)
		default:
			panic(p)
		}
	}()
	work()
	return nil
}
