// Package hugepage tells tests about the kernel's huge pages: whether this kernel gives them, and
// where they are mapped. It can also make the kernel refuse them.
package hugepage

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// Bytes of a huge page.
const Bytes = 2 << 20

// Slow is the longest time that the kernel may take for a block. After a slower block, code under
// test stops asking for huge pages for a while.
const Slow = 20 * time.Millisecond

// Need skips a test, with the reason, if the kernel gives no huge pages.
func Need(t testing.TB) {
	t.Helper()
	if err := Short(8); err != nil {
		t.Skipf("NOT TESTED HERE: %v", err)
	}
}

// Try runs a test that needs n huge blocks, until it passes. When memory is fragmented, the kernel
// refuses some blocks or takes long. On a busy machine a block takes long because the thread waits
// for a processor. So a failed run counts only if the kernel gives n blocks directly both before and
// after it, and no thread waited longer than Slow. Three such runs fail the test. Ten tries with
// fewer skip it.
func Try(t testing.TB, n int, run func() error) {
	t.Helper()
	var failed, short error
	for tries, failures := 0, 0; tries < 10; tries++ {
		before, waited := Short(n), waits()
		err := run()
		if err == nil {
			return
		}
		if waited = waits() - waited; waited > Slow && before == nil {
			before = fmt.Errorf("threads waited %v for a processor", waited)
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

// waits returns for how long the threads of this process waited for a processor; 0: the kernel does
// not say.
func waits() (all time.Duration) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, name := range files {
		var ran, waited time.Duration
		if text, err := os.ReadFile(name); err == nil { // else the thread has ended
			_, _ = fmt.Sscan(string(text), &ran, &waited)
		}
		all += waited
	}
	return all
}

// Refuse makes the kernel refuse huge pages to this process until the test ends.
func Refuse(t testing.TB) {
	t.Helper()
	before, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)
	}
	fatal.If(t, err)
	t.Cleanup(func() { expect.NoError(t, unix.Prctl(unix.PR_SET_THP_DISABLE, uintptr(before), 0, 0, 0)) })
	if Short(1) == nil {
		t.Fatal("the kernel gives huge pages all the same")
	}
}

// Mapped reads a whole map of a file, which begins at memory[0]. It returns how many bytes of the
// map are huge pages of this process.
func Mapped(memory []byte) (uint64, error) {
	crc32.ChecksumIEEE(memory) // a read maps the pages
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
		case key == "VmFlags": // the last line of the map
			return huge, nil
		}
	}
	return 0, fmt.Errorf("/proc/self/smaps has no map that begins at %s, or does not say what is huge in it", head)
}

// Short says why the kernel does not make n blocks of a new memfd huge for this process, each by
// itself and quickly; nil: it does. Short asks the kernel directly, without the code under test.
func Short(n int) (err error) {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return err
	}
	if bytes.Contains(text, []byte("[never]")) {
		return fmt.Errorf("the system has turned transparent huge pages off: %q", text)
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
