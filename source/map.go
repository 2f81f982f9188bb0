package source

import (
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Map is a part of a file in memory, read-only. It takes page cache, which the kernel can drop, and no memory of the process.
type Map struct {
	Bytes []byte // valid until Close; look at them within File.Look only
	pages []byte
}

// Map maps n bytes from offset, n at least 1. The caller has made sure that the file is as long. ErrClosed, and errors of the system with the path.
func (f *File) Map(offset int64, n int) (*Map, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return nil, fmt.Errorf("%w: %s", ErrClosed, f.Path)
	}
	skip := int(offset % int64(os.Getpagesize()))
	pages, err := unix.Mmap(int(f.f.Fd()), offset-int64(skip), n+skip, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: fmt.Sprintf("map %d bytes of", n), Path: f.Path, Err: err}
	}
	return &Map{Bytes: pages[skip:], pages: pages}, nil
}

// Forget gives the pages that were looked at back to the kernel: they are read again when they are looked at again.
func (m *Map) Forget() { _ = unix.Madvise(m.pages, unix.MADV_DONTNEED) }

// Close unmaps. Nobody may look any more.
func (m *Map) Close() error {
	if m == nil || m.pages == nil {
		return nil
	}
	err := unix.Munmap(m.pages)
	m.pages, m.Bytes = nil, nil
	return err
}

// Look runs work, which looks at mapped bytes of the file. That a page is gone, because the file was truncated, is ErrChanged and not the end of the process; that one cannot be
// read is ErrChanged too, as the kernel tells no difference. Nothing else may fault in work.
func (f *File) Look(work func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			err = fmt.Errorf("%w: pages of %s cannot be read any more: it was truncated, or its disk fails", ErrChanged, f.Path)
		default:
			panic(p)
		}
	}()
	work()
	return nil
}
