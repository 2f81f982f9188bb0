package dir

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ensure that direct reads are aligned as a strict file system requires, and continue after signals
// and short reads. Many file systems accept any read, so a test with files would not show it.
func TestReadsAreAligned(t *testing.T) {
	data := make([]byte, 3<<20+777)
	for k := range data {
		data[k] = byte(k ^ k>>8 ^ k>>16)
	}
	for _, size := range []int{1, 512, 4096, directAlign, directAlign + 1, directBytes, directBytes + 1, len(data)} {
		for _, most := range []int{directBytes, 512, 3 * directAlign, 5000 * directBlock} { // bytes of one call
			file, calls := data[:size], 0
			pread := func(p []byte, at int64) (int, error) {
				if address := uintptr(unsafe.Pointer(&p[0])); address%directAlign != 0 || len(p)%directAlign != 0 || at%directBlock != 0 {
					t.Fatalf("%d bytes at %d into %x", len(p), at, address)
				}
				if calls++; calls%3 == 1 {
					return 0, unix.EINTR
				}
				return copy(p[:min(most, len(p))], file[min(int(at), size):]), nil
			}
			dst := make([]byte, size)
			if err := readAligned(pread, "x", dst, 0); err != nil || !bytes.Equal(dst, file) {
				t.Errorf("%d bytes, %d at a time: %v", size, most, err)
			}
			if err := readAligned(pread, "x", make([]byte, size+1), 0); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("one more than %d bytes, %d at a time: %v", size, most, err)
			}
		}
	}
}
