package dir_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/source"
)

// Direct reads return all bytes, for any length of a file and any place of the buffer.
func TestDirect(t *testing.T) {
	needDirect(t)
	sizes := []int{0, 1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 100_000, 1<<20 - 1, 1 << 20, 1<<20 + 1,
		1<<20 + 4096, 3<<20 + 777}
	contents := map[string]string{}
	for _, n := range sizes {
		contents[fmt.Sprintf("%08d", n)] = long(n, byte(n))
	}
	root := write(t, contents)
	for _, kept := range []int{0, 100} {
		s := mustOpen(t, root, source.Settings{"direct": true, "descriptors": kept})
		var readers sync.WaitGroup
		for offset := range 4 {
			readers.Go(func() {
				buffer := make([]byte, 4<<20)
				for i, n := range sizes {
					dst := buffer[offset : offset+n+1]
					dst[n] = 0xA5
					if got, err := s.Read(context.Background(), i, dst); err != nil || got != n || string(dst[:n]) != contents[fmt.Sprintf("%08d", n)] || dst[n] != 0xA5 {
						t.Errorf("%d bytes at an address of %d: %d, %v", n, offset, got, err)
					}
				}
			})
		}
		readers.Wait()
	}
}

// A file system without direct reads, such as sysfs, is detected when the source is opened, or when
// a later file lies on one.
func TestDirectRefused(t *testing.T) {
	needDirect(t)
	const file = "/sys/kernel/mm/transparent_hugepage/enabled"
	if _, err := os.Stat(file); err != nil {
		t.Skip(err)
	}
	root := write(t, map[string]string{"0": "", "1": "-> " + file})
	want := "the file system of " + filepath.Join(root, "1") + " refuses direct reads (O_DIRECT); leave out direct"
	if _, err := open(root, source.Settings{"direct": true}); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	root = write(t, map[string]string{"0": "zero", "1": "-> " + file})
	s := mustOpen(t, root, source.Settings{"direct": true})
	if _, err := readAll(s, 1); !errors.Is(err, source.ErrInvalid) ||
		!strings.Contains(err.Error(), filepath.Join(root, "1")+" refuses direct reads") {
		t.Error(err)
	}
	if got, err := readAll(s, 0); string(got) != "zero" {
		t.Errorf("%q, %v", got, err)
	}
}
