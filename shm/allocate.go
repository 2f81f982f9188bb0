package shm

import "golang.org/x/sys/unix"

// On many kernels (not on 6.18) any signal interrupts fallocate, and every page of that call is given back. So a call must be short against the distance of signals (the Go runtime, profilers and
// timers send them): 64 MiB take about 25 ms, and each interruption halves the next call, down to 64 KiB in about 25 microseconds; each success doubles it again.
const (
	allocateMost  = 64 << 20
	allocateLeast = 64 << 10
)

// allocate takes the pages of n bytes at offset. grant, if it is not nil, says how many more may be taken; it is asked at the beginning, whenever these are taken, and at the end, and its
// error ends it. What was taken stays taken on failure.
func allocate(fd int, offset, n uint64, grant func(done, total uint64) (uint64, error)) error {
	return allocateBy(unix.Fallocate, fd, offset, n, grant)
}

// allocateBy is allocate with another system call, for tests.
func allocateBy(fallocate func(fd int, mode uint32, offset, n int64) error, fd int, offset, n uint64, grant func(done, total uint64) (uint64, error)) error {
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
