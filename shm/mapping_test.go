package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/fatal"
)

func init() {
	children["lock-all"] = childLockAll
}

// flagsOf returns the kernel's flags of the mapping that begins where a region does.
func flagsOf(region []byte) ([]string, error) {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut("\n"+string(text), fmt.Sprintf("\n%x-", uintptr(unsafe.Pointer(&region[0]))))
	_, rest, found := strings.Cut(rest, "VmFlags:")
	if !found {
		return nil, fmt.Errorf("no mapping begins at %p", &region[0])
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line), nil
}

// Ensure that core dumps leave out the payload of any size, and no other part.
func TestPayloadIsNotDumped(t *testing.T) {
	for _, samples := range []uint64{4, 4096} {
		s := create(t, Options{Samples: samples, SampleBytes: 4096})
		for _, part := range []struct {
			region []byte
			out    bool
		}{{s.maps.payload, true}, {s.maps.control, false}} {
			if flags, err := flagsOf(part.region); err != nil || slices.Contains(flags, "dd") != part.out {
				t.Errorf("%d samples: flags %v, %v; dd: want %v", samples, flags, err, part.out)
			}
		}
	}
}

// Ensure that a program that locks all its memory, future maps too, does not allocate the whole
// cache, and can use it.
func TestLockedMemory(t *testing.T) {
	cmd, out := child("lock-all")
	if err := cmd.Run(); err != nil {
		if strings.Contains(out.String(), "mlockall: ") {
			fatal.Privileged(t, "lock all memory", errors.New(out.String()))
		}
		t.Fatalf("%v\n%s", err, out)
	}
}

func childLockAll([]string) error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
		return fmt.Errorf("mlockall: %w", err)
	}
	s, err := Create(Options{Samples: 1024, SampleBytes: 1 << 20})
	if err != nil {
		return err
	}
	defer s.Close()
	if flags, err := flagsOf(s.maps.payload); err != nil || slices.Contains(flags, "lo") {
		return fmt.Errorf("flags of the payload: %v, %w", flags, err)
	}
	if _, err := s.WritePayload(bytes.Repeat([]byte{0xa7}, 1<<20), 5*s.SlotStride); err != nil {
		return err
	}
	if b := s.Bytes(5*s.SlotStride, 1<<20); b[0] != 0xa7 || b[1<<20-1] != 0xa7 {
		return errors.New("the payload does not show what was written to it")
	}
	if n, err := s.AllocatedBytes(); err != nil || n > 16<<20 {
		return fmt.Errorf("%d bytes of the cache are allocated, %w", n, err)
	}
	return nil
}
