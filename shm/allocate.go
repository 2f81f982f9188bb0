package shm

import "golang.org/x/sys/unix"

// On many kernels (not on 6.18) any signal interrupts fallocate, and every page of that call is given back. So a call must be short against the distance of signals (the Go runtime, profilers and
// timers send them): 64 MiB take about 25 ms, and each interruption halves the next call, down to 64 KiB in about 25 microseconds; each success doubles it again.
const (
	allocateMost  = 64 << 20
	allocateLeast = 64 << 10
)

// allocate takes the pages of n bytes at offset and calls progress, if it is not nil, after every 64 MiB and at the end; an error of progress ends it. What was taken stays taken on failure.
func allocate(fd int, offset, n uint64, progress func(done, total uint64) error) error {
	return allocateBy(unix.Fallocate, fd, offset, n, progress)
}

// allocateBy is allocate with another system call, for tests.
func allocateBy(fallocate func(fd int, mode uint32, offset, n int64) error, fd int, offset, n uint64, progress func(done, total uint64) error) error {
	step, reported := uint64(allocateMost), uint64(0)
	for done := uint64(0); done < n; {
		now := min(step, n-done)
		err := fallocate(fd, 0, int64(offset+done), int64(now))
		if err == unix.EINTR {
			step = max(now/2, allocateLeast)
			continue
		}
		if err != nil {
			return err
		}
		done, step = done+now, min(2*step, allocateMost)
		if progress != nil && (done-reported >= allocateMost || done == n) {
			reported = done
			if err := progress(done, n); err != nil {
				return err
			}
		}
	}
	return nil
}
