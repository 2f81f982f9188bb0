package memory

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that Allocate ends even if each call of more than 100 KB is interrupted, allocates each
// byte exactly once, and uses larger steps again when the signals stop.
func TestAllocateInterrupted(t *testing.T) {
	const n, offset = 400<<20 + 5, 4096
	for _, longest := range []int64{allocateLeast, 100_000, 5 << 20} {
		at, calls, largest := int64(offset), 0, int64(0)
		err := allocateBy(func(fd int, mode uint32, from, bytes int64) error {
			if calls++; bytes > longest && from < 100<<20 { // then the signals stop
				return unix.EINTR
			}
			fatal.Equal(t, from, at, "from the end of the last call")
			at, largest = from+bytes, max(largest, bytes)
			return nil
		}, -1, offset, n, nil)
		if err != nil || at != offset+n {
			t.Errorf("interrupted over %d: ends at %d, %v", longest, at, err)
		}
		if largest != allocateMost {
			t.Errorf("interrupted over %d: steps never got longer than %d again", longest, largest)
		}
	}
	if err := allocateBy(func(int, uint32, int64, int64) error { return unix.ENOSPC }, -1, 0, 1, nil); err != unix.ENOSPC {
		t.Error(err)
	}
}
