package shm

import "golang.org/x/sys/unix"

// fallocate takes the pages of n bytes at offset. The kernel starts over when a signal interrupts it (the Go runtime sends them), and
// undoes what it did: so callers ask for steps that are short against the distance of signals.
func fallocate(fd int, offset, n uint64) error {
	for {
		if err := unix.Fallocate(fd, 0, int64(offset), int64(n)); err != unix.EINTR {
			return err
		}
	}
}

// allocateStep is 64 MiB, about 25 ms: short against the Go runtime's preemption signals, long against a system call, and what Progress gets to see.
const allocateStep = 64 << 20

// allocate takes the pages of n bytes at offset in steps and calls progress, if it is not nil, after each.
func allocate(fd int, offset, n uint64, progress func(done, total uint64)) error {
	for done := uint64(0); done < n; {
		step := min(n-done, allocateStep)
		if err := fallocate(fd, offset+done, step); err != nil {
			return err
		}
		if done += step; progress != nil {
			progress(done, n)
		}
	}
	return nil
}
