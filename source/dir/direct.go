package dir

import (
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// Reads past the page cache want memory, places and lengths that are multiples of the disk's block: 64 KiB is the largest there is, so it fits any. A read
// that reaches past the end of the file is short, so that the tail is nothing special.
const (
	directAlign = 64 << 10
	directBlock = 512     // the smallest block: nothing but the end of a file lies between two
	directBytes = 1 << 20 // of a read, and of the buffer of each goroutine that reads: larger files are read in pieces
)

var directBuffers = sync.Pool{New: func() any {
	b := make([]byte, directBytes+directAlign)
	if rest := int(uintptr(unsafe.Pointer(&b[0])) % directAlign); rest != 0 { // memory of this size never moves
		b = b[directAlign-rest:]
	}
	b = b[:directBytes:directBytes]
	return &b
}}

// readDirect is source.ReadFull of a file that is open for direct reading; offset is a multiple of directAlign.
func readDirect(fd int, path string, dst []byte, offset int64) error {
	return readAligned(func(p []byte, at int64) (int, error) { return unix.Pread(fd, p, at) }, path, dst, offset)
}

func readAligned(pread func(p []byte, at int64) (int, error), path string, dst []byte, offset int64) error {
	buffer := directBuffers.Get().(*[]byte)
	defer directBuffers.Put(buffer)
	for done := 0; done < len(dst); {
		want := min(directBytes, len(dst)-done)
		n, err := pread((*buffer)[:(want+directAlign-1)/directAlign*directAlign], offset+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EINVAL:
			return noDirect(path)
		case err != nil:
			return &os.PathError{Op: "read", Path: path, Err: err}
		}
		done += copy(dst[done:done+want], (*buffer)[:n])
		if done < len(dst) && (n == 0 || n%directBlock != 0) { // less than was asked for, and no place to go on from: it is the end
			return fmt.Errorf("%s: %w: %d bytes, and it ends after %d", path, io.ErrUnexpectedEOF, len(dst), done)
		}
	}
	return nil
}

// noDirect is the error of a file system that has no direct reads.
func noDirect(path string) error {
	return fmt.Errorf("%w: the file system of %s refuses direct reads (O_DIRECT); leave out direct", source.ErrInvalid, path)
}

// tryDirect reads the first file that is not empty, so that a file system without direct reads is found when the source is opened.
func (t *tree) tryDirect() error {
	for i := range t.files.len() {
		bytes := t.files.bytes(i)
		if bytes == 0 {
			continue
		}
		path := t.path(i)
		fd, err := t.open(path)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return readDirect(fd, path, make([]byte, min(bytes, directAlign)), 0)
	}
	return nil
}
