package memory

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Rules for all implementations (docs/spec/segment.md, Memory); not part of the format.
const (
	// Headroom: a tenth of the tmpfs, at most HeadroomMax, stays free for others.
	HeadroomMax     = 1 << 30
	HeadroomDivisor = 10
	// Floor: a sixteenth of the limit, between FloorMin and FloorMax, stays available in each
	// cgroup and in the machine.
	FloorMin     = 128 << 20
	FloorMax     = 1 << 30
	FloorDivisor = 16
	// Grant: one check of the memory lets clients fill a sixteenth of what is usable, at most
	// GrantMax.
	GrantMax     = 64 << 20
	GrantDivisor = 16
	FillDivisor  = 4 // a single fill may take a quarter of what is usable
)

// Unlimited is what is left where nothing sets a limit.
const Unlimited = 1<<64 - 1

// Space is what one limit leaves.
type Space struct {
	Left  uint64 // bytes that caches may still fill; Unlimited without a limit
	Total uint64 // bytes of the limit; 0 without one
	Text  string // the calculation, with the numbers, for messages
}

// Tmpfs returns what the tmpfs of a directory has free for a new cache. promised is what other
// caches in it may still fill: a cache that allocates its pages later leaves these bytes free.
func Tmpfs(fs *unix.Statfs_t, dir string, promised Sum) Space {
	if fs.Blocks == 0 { // size=0: no limit
		return Space{Left: Unlimited, Text: "no tmpfs sets a limit"}
	}
	size, free := fs.Blocks*uint64(fs.Bsize), fs.Bavail*uint64(fs.Bsize)
	left := free - min(free, headroom(size))
	left -= min(left, promised.Bytes)
	return Space{left, size,
		fmt.Sprintf("the tmpfs of %s has %s free of %s, less %s of headroom for data loaders, "+
			"less %s that other caches (%d) have yet to fill, leaves %s", dir, Size(free), Size(size),
			Size(headroom(size)), Size(promised.Bytes), promised.Caches, Size(left))}
}

// headroom is what a tmpfs keeps free for others: a tenth of its size, at most 1 GiB. Data
// loaders keep their queues in the same tmpfs (8 workers x 2 batches of 256 samples of 150 KB are
// 600 MB), and SIGBUS kills a worker when it is full. The limit is a tenth, because a container's
// /dev/shm may have 64 MB in all.
func headroom(size uint64) uint64 { return min(size/HeadroomDivisor, HeadroomMax) }

// Size writes a number of bytes exactly, and rounded to MiB or GiB.
func Size(n uint64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	unit, name := float64(1<<20), "MiB"
	if n >= 1<<30 {
		unit, name = 1<<30, "GiB"
	}
	return fmt.Sprintf("%d bytes (%.1f %s)", n, float64(n)/unit, name)
}
