package shm

import "golang.org/x/sys/unix"

func checkBudget(need uint64, fs *unix.Statfs_t, dir string) error { return nil }

// CheckMemory says whether the machine and the cgroup still have room for a fill; see checkBudget.
func (s *Segment) CheckMemory() error { return nil }
