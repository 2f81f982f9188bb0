package memory

import "golang.org/x/sys/unix"

// On many kernels (not on 6.18) a signal interrupts fallocate and the kernel frees all pages of
// that call. The Go runtime, profilers and timers send signals, so a call must be short: 64 MiB
// take about 25 ms. Each interruption halves the next call, down to 64 KiB (about 25 us). Each
// success doubles it.
const (
	allocateMost  = 64 << 20
	allocateLeast = 64 << 10
)

// Allocate allocates the pages of n bytes at offset. grant may be nil. Allocate calls it at the
// beginning, when all granted bytes are allocated, and at the end. grant returns how many more
// bytes it allows; its error ends the allocation. After a failure the allocated pages stay.
func Allocate(fd int, offset, n uint64, grant func(done, total uint64) (uint64, error)) error {
	return allocateBy(unix.Fallocate, fd, offset, n, grant)
}

// allocateBy is Allocate with another system call, for tests.
func allocateBy(fallocate func(fd int, mode uint32, offset, n int64) error, fd int, offset, n uint64,
	grant func(done, total uint64) (uint64, error)) error {
	step, granted := uint64(allocateMost), n
	if grant != nil {
		granted = 0
	}
	for done := uint64(0); ; {
		if grant != nil && (granted == 0 || done == n) {
			var err error
			if granted, err = grant(done, n); err != nil {
				return err
			}
		}
		if done == n {
			return nil
		}
		now := min(step, granted, n-done)
		err := fallocate(fd, 0, int64(offset+done), int64(now))
		if err == unix.EINTR {
			step = max(now/2, allocateLeast)
			continue
		}
		if err != nil {
			return err
		}
		done, granted, step = done+now, granted-now, min(2*step, allocateMost)
	}
}
