// Package hugepage tells tests what the kernel does about huge pages: whether this one gives them,
// and where they are mapped. It also has it refuse them.
package hugepage

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bytes of a huge page.
const Bytes = 2 << 20

// Slow is how long a block may take. Code that asks for huge pages stops asking for a while after
// one that took longer.
const Slow = 20 * time.Millisecond

// Need skips a test, with the reason, where the kernel gives no huge pages.
func Need(t testing.TB) {
	t.Helper()
	if err := Short(8); err != nil {
		t.Skipf("NOT TESTED HERE: %v", err)
	}
}

// Try runs a test of which blocks are huge, which needs n of them, until it passes. Where memory is
// in fragments the kernel refuses some blocks, or takes long: a run that fails counts only if the
// kernel gives n blocks, asked directly, both before and after it. Three such runs fail the test;
// too few of them among ten skip it.
func Try(t testing.TB, n int, run func() error) {
	t.Helper()
	var failed, short error
	for tries, failures := 0, 0; tries < 10; tries++ {
		before := Short(n)
		err := run()
		if err == nil {
			return
		}
		if before = cmp.Or(before, Short(n)); before != nil {
			short = before
			continue
		}
		if failed = err; failures == 2 {
			t.Fatal(failed)
		}
		failures++
	}
	t.Skipf("NOT TESTED HERE: %v (%v)", short, failed)
}

// Refuse has the kernel refuse this process huge pages until the test ends.
func Refuse(t testing.TB) {
	t.Helper()
	before, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Prctl(unix.PR_SET_THP_DISABLE, uintptr(before), 0, 0, 0); err != nil {
			t.Error(err)
		}
	})
	if Short(1) == nil {
		t.Fatal("the kernel gives huge pages all the same")
	}
}

// Mapped reads a whole map of a file, which begins at memory[0], and returns how many bytes of it
// are mapped to this process as huge pages.
func Mapped(memory []byte) (uint64, error) {
	crc32.ChecksumIEEE(memory) // pages are mapped when they are read
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	head := fmt.Sprintf("%08x-", uintptr(unsafe.Pointer(&memory[0])))
	var huge, here uint64
	var found bool
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		key, value, _ := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(line, head):
			found = true
		case !found:
		case key == "ShmemPmdMapped", key == "FilePmdMapped":
			if _, err := fmt.Sscanf(value, "%d kB", &here); err != nil {
				return 0, fmt.Errorf("%q: %w", line, err)
			}
			huge += here << 10
		case key == "VmFlags": // ends the map
			return huge, nil
		}
	}
	return 0, fmt.Errorf("/proc/self/smaps has no map that begins at %s, or does not say what is huge in it", head)
}

// Short says why the kernel would not make n blocks of a new memfd huge for this process, each by
// itself and quickly; nil: it would. It is asked directly, not by the code under test.
func Short(n int) (err error) {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return err
	}
	if bytes.Contains(text, []byte("[never]")) {
		return fmt.Errorf("the system wants no transparent huge pages: %q", text)
	}
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	length := uintptr(n) * Bytes
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		return err
	}
	room, err := unix.MmapPtr(-1, 0, nil, length+Bytes, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.MunmapPtr(room, length+Bytes)) }()
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(room, -uintptr(room)&(Bytes-1)), length, unix.PROT_READ,
		unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return err
	}
	for k := range n {
		began := time.Now()
		if err := unix.Fallocate(fd, 0, int64(k*Bytes), 4096); err != nil {
			return err
		}
		if err := unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(at, k*Bytes)), Bytes), unix.MADV_COLLAPSE); err != nil {
			return fmt.Errorf("the kernel makes no huge page of block %d of %d of a memfd (MADV_COLLAPSE): %w", k, n,
				err)
		}
		if took := time.Since(began); took > Slow {
			return fmt.Errorf("the kernel took %v to make a huge page", took)
		}
	}
	return nil
}
