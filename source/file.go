package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// File is a data file with samples. If its stamp changes after it was opened, reads return
// ErrChanged, never other bytes. Another local file with its name does not matter. It is
// safe for concurrent use.
type File struct {
	Path  string
	Stamp Stamp

	objects Objects      // the file is one of these; nil: it is a local file
	mu      sync.RWMutex // locked for reading by reads: Close waits for them
	closed  bool
	f       *os.File // nil: no local file
}

// Stamp identifies a state of a file.
type Stamp struct {
	Bytes int64
	// ModifiedNs is the time of modification, in ns since 1970. For an object it is a number made of
	// its tag (ETag or Last-Modified); 0: it has none, and only its size tells a change.
	ModifiedNs int64
	// BornNs is the time when a local file was created, in ns since 1970. No program can set it, so it
	// tells a file that another one of the same size and ModifiedNs has replaced. A chmod, a chown, a
	// link or a new name leave it. 0: an object, or a file system that does not say.
	BornNs int64
}

// OpenFile opens a regular file for reading. It returns ErrInvalid for any other file, else errors
// of the system with the path.
func OpenFile(path string) (*File, error) {
	// O_NONBLOCK: a FIFO must not block. The flag does not affect regular files.
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := &File{Path: path, f: os.NewFile(uintptr(fd), path)}
	stamp, err := StampOfDescriptor(fd, path)
	if err != nil {
		f.f.Close()
		return nil, err
	}
	f.Stamp = stamp
	return f, nil
}

// StampOf returns the stamp of a path. It follows symbolic links. It returns the errors of
// OpenFile.
func StampOf(path string) (Stamp, error) {
	return stampAt(unix.AT_FDCWD, path, 0, path)
}

// StampOfDescriptor is StampOf for an open file. path is for messages.
func StampOfDescriptor(fd int, path string) (Stamp, error) {
	return stampAt(fd, "", unix.AT_EMPTY_PATH, path)
}

func stampAt(folder int, name string, flags int, path string) (Stamp, error) {
	var st unix.Statx_t
	const want = unix.STATX_TYPE | unix.STATX_SIZE | unix.STATX_MTIME | unix.STATX_BTIME
	if _, err := retryEINTR(func() (int, error) { return 0, unix.Statx(folder, name, flags, want, &st) }); err != nil {
		return Stamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Stamp{}, fmt.Errorf("%w: %s is not a regular file", ErrInvalid, path)
	}
	stamp := Stamp{Bytes: int64(st.Size), ModifiedNs: nanoseconds(st.Mtime)}
	if st.Mask&unix.STATX_BTIME != 0 {
		stamp.BornNs = nanoseconds(st.Btime)
	}
	return stamp, nil
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// IsTrusted says whether only this user, root, or the owner of another file can have written the file. Who can write that
// file can give any samples anyway.
func (f *File) IsTrusted(other string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var ours, theirs unix.Stat_t
	if f.f == nil || unix.Fstat(int(f.f.Fd()), &ours) != nil || ours.Mode&unix.S_IWOTH != 0 {
		return false
	}
	return ours.Uid == 0 || int(ours.Uid) == os.Geteuid() || unix.Stat(other, &theirs) == nil && ours.Uid == theirs.Uid
}

// ReadAt fills dst from offset with bytes of the file as it was opened: it checks the file again
// after the read. Errors: ErrChanged, ErrClosed, the cause of ctx, errors of the system with the
// path.
func (f *File) ReadAt(ctx context.Context, dst []byte, offset int64) error {
	if f.objects != nil {
		return f.readRemote(ctx, dst, offset)
	}
	return f.reading(ctx, func(fd int) error { return ReadFull(fd, f.Path, dst, offset) })
}

// reading calls read while the file is open, and then checks the file. It returns ErrChanged if the
// file has changed, also if read returned an error.
func (f *File) reading(ctx context.Context, read func(fd int) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.alive(); err != nil {
		return err
	}
	fd := int(f.f.Fd())
	short := read(fd)
	if short != nil && !errors.Is(short, io.ErrUnexpectedEOF) {
		return short
	}
	stamp, err := StampOfDescriptor(fd, f.Path)
	return cmp.Or(err, f.Stamp.Check(f.Path, stamp), short)
}

// readRemote is ReadAt for an object.
func (f *File) readRemote(ctx context.Context, dst []byte, offset int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.alive(); err != nil {
		return err
	}
	return f.objects.ReadAt(OfRecords(ctx), f.Path, f.Stamp, dst, offset)
}

// Check returns ErrChanged, with the difference, unless now is the same stamp.
func (s Stamp) Check(path string, now Stamp) error {
	switch {
	case s == now:
		return nil
	case s.Bytes == now.Bytes && s.ModifiedNs == now.ModifiedNs:
		return fmt.Errorf("%w: another file has replaced %s: that one was created at %v, this one at %v; stocached reload begins an empty "+
			"cache of the new data", ErrChanged, path, time.Unix(0, s.BornNs).UTC(), time.Unix(0, now.BornNs).UTC())
	case s.Bytes != now.Bytes:
		return fmt.Errorf("%w: %s had %d bytes and has %d; stocached reload begins an empty cache of the new data", ErrChanged, path,
			s.Bytes, now.Bytes)
	}
	return fmt.Errorf("%w: %s was written to; stocached reload begins an empty cache of the new data", ErrChanged, path)
}

// ReadFull fills dst from offset of an open file. It continues after signals and short reads. It
// returns io.ErrUnexpectedEOF with the numbers when the file ends earlier.
func ReadFull(fd int, path string, dst []byte, offset int64) error {
	for done := 0; done < len(dst); {
		n, err := unix.Pread(fd, dst[done:], offset+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return fmt.Errorf("%s: %w: %d bytes at %d, but the file ends after %d of them", path,
				io.ErrUnexpectedEOF, len(dst), offset, done)
		default:
			done += n
		}
	}
	return nil
}

// Alive returns ErrClosed after Close.
func (f *File) Alive() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.alive()
}

// alive is Alive for a caller that holds mu.
func (f *File) alive() error {
	if f.closed {
		return fmt.Errorf("%w: %s", ErrClosed, f.Path)
	}
	return nil
}

// Close waits for inflight reads and closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	if f.f == nil {
		return nil
	}
	return f.f.Close()
}

func retryEINTR(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
