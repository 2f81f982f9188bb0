package dir

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// Direct reads need memory, offsets and lengths that are multiples of the disk's block. 64 KiB is
// the largest block, so it suits all disks. A read past the end of the file is short, so the tail
// needs no special case.
const (
	directAlign = 64 << 10
	directBlock = 512     // the smallest block: a read ends between two blocks only at the end of a file
	directBytes = 1 << 20 // of a read, and of each reader's buffer; larger files are read in pieces
)

var directBuffers = sync.Pool{New: func() any {
	b := make([]byte, directBytes+directAlign)
	if rest := int(uintptr(unsafe.Pointer(&b[0])) % directAlign); rest != 0 { // memory of this size never moves
		b = b[directAlign-rest:]
	}
	b = b[:directBytes:directBytes]
	return &b
}}

// readDirect is source.ReadFull for a file that is open for direct reads. offset is a multiple of
// directAlign.
func readDirect(fd int, path string, dst []byte, offset int64) error {
	return readAligned(func(p []byte, at int64) (int, error) { return unix.Pread(fd, p, at) }, path, dst, offset)
}

func readAligned(pread func(p []byte, at int64) (int, error), path string, dst []byte, offset int64) error {
	buffer := directBuffers.Get().(*[]byte)
	defer directBuffers.Put(buffer)
	for done := 0; done < len(dst); {
		part := min(directBytes, len(dst)-done)
		n, err := pread((*buffer)[:(part+directAlign-1)/directAlign*directAlign], offset+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EINVAL:
			return noDirect(path)
		case err != nil:
			return &os.PathError{Op: "read", Path: path, Err: err}
		}
		done += copy(dst[done:done+part], (*buffer)[:n])
		// a short read that does not end between blocks is the end of the file
		if done < len(dst) && (n == 0 || n%directBlock != 0) {
			return fmt.Errorf("%s: %w: expected %d bytes, the file ends after %d", path, io.ErrUnexpectedEOF, len(dst), done)
		}
	}
	return nil
}

// noDirect is the error for a file system without direct reads.
func noDirect(path string) error {
	return fmt.Errorf("%w: the file system of %s refuses direct reads (O_DIRECT); leave out direct",
		source.ErrInvalid, path)
}

// tryDirect reads the first file that is not empty, so that Open fails on a file system without
// direct reads.
func (t *tree) tryDirect(ctx context.Context) error {
	for c := (cursor{files: &t.files}); ; {
		more, err := c.next(ctx)
		if err != nil || !more {
			return err
		}
		if size := c.entry.stamp.Bytes; size > 0 {
			path := t.root + "/" + string(c.entry.name)
			fd, err := t.open(path)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return readDirect(fd, path, make([]byte, min(size, directAlign)), 0)
		}
	}
}
