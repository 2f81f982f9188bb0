package shm

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// budget is what a new segment of need bytes is held against. All numbers are bytes.
type budget struct {
	need uint64

	tmpfs    bool   // there is a tmpfs, and it has a size
	dir      string // the one of the segment
	size     uint64 // of the tmpfs
	free     uint64 // of it
	promised uint64 // what other caches in it have yet to fill: lazy caches leave free space unchanged
	others   int    // how many those are

	tightest room
}

// checkBudget refuses a segment that memory has no room for: ErrMemory, with the numbers and what to do. fs and dir describe the tmpfs of a named cache; a memfd (fs nil) knows
// no such limit. It reserves nothing: two creators at the same moment can both pass, and the fills of the second are then refused as FULL.
func checkBudget(need uint64, fs *unix.Statfs_t, dir string) error {
	b, err := newBudget(fs, dir)
	if err != nil {
		return err
	}
	b.need = need
	return b.check()
}

func newBudget(fs *unix.Statfs_t, dir string) (b budget, err error) {
	b.dir = dir
	if b.tightest, err = (kernel{"/"}).tightest(); err != nil {
		return b, err
	}
	if fs != nil && fs.Blocks != 0 { // size=0: no limit
		b.tmpfs, b.size, b.free = true, fs.Blocks*uint64(fs.Bsize), fs.Bavail*uint64(fs.Bsize)
		b.promised, b.others = promised(dir)
	}
	return b, nil
}

// headroom is what the tmpfs keeps for others: a tenth of it, at most 1 GiB. The queues of data loaders lie in the same tmpfs (8 workers x 2 batches of 256 samples of
// 150 KB are 600 MB), and a worker that finds it full dies of SIGBUS. A tenth, because a container's /dev/shm may have 64 MB in all.
func (b *budget) headroom() uint64 { return min(b.size/HeadroomDivisor, HeadroomMax) }

func (b *budget) check() error {
	if s := b.inTmpfs(); b.need > s.Left {
		return fail(ErrMemory, "the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME), enlarge it (mount -o remount,size=...), or "+
			"leave out the name: an unnamed cache is not bound to it", size(b.need), s.Text)
	}
	if s := b.inMemory(); b.need > s.Left {
		return fail(ErrMemory, "the cache needs %s; %s; give a smaller limit (--size), or more memory to %s", size(b.need), s.Text, b.tightest.what)
	}
	return nil
}

// inTmpfs is what the tmpfs leaves.
func (b *budget) inTmpfs() Space {
	if !b.tmpfs {
		return Space{unlimited, "no tmpfs sets a limit"}
	}
	left := b.free - min(b.free, b.headroom())
	left -= min(left, b.promised)
	return Space{left, fmt.Sprintf("the tmpfs of %s has %s free of %s, less %s of headroom for data loaders, less %s that other caches (%d) have yet to fill, leaves %s",
		b.dir, size(b.free), size(b.size), size(b.headroom()), size(b.promised), b.others, size(left))}
}

// inMemory is what the machine and the cgroups leave.
func (b *budget) inMemory() Space {
	t := &b.tightest
	return Space{t.usable(), fmt.Sprintf("%s has %s available of %s, less a floor of %s, leaves %s", t.what, size(t.available), size(t.total), size(t.floor()), size(t.usable()))}
}

// size writes bytes for people who compare and for people who read.
func size(n uint64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	unit, name := float64(1<<20), "MiB"
	if n >= 1<<30 {
		unit, name = 1<<30, "GiB"
	}
	return fmt.Sprintf("%d bytes (%.1f %s)", n, float64(n)/unit, name)
}

// CheckMemory says whether the machine and the process's cgroups have room for more fills: an error that wraps ErrFull, with the numbers, when what is available
// is below the floor. Fills call it every MemoryCheckBytes, because past a cgroup's limit the kernel does not refuse a write but kills. nil for a segment whose
// pages are all taken already, and on the heap. About 100 microseconds.
func (s *Segment) CheckMemory() error {
	if s.file == nil || s.Header.Flags&FlagReserved != 0 {
		return nil
	}
	return checkFloor(kernel{"/"})
}

func checkFloor(k kernel) error {
	t, err := k.tightest()
	if err != nil {
		return err
	}
	if t.usable() == 0 {
		return fail(ErrFull, "%s has %s available of %s, at or below the floor of %s; samples go uncached until there is more", t.what, size(t.available), size(t.total), size(t.floor()))
	}
	return nil
}

// promised adds up what the caches in the tmpfs of dir have yet to fill: of those in dir, and in every stocached-* directory at the top of that
// tmpfs that this user may read (other users' are 0700, and remain unknown).
func promised(dir string) (bytes uint64, caches int) {
	top := mountTop(dir)
	dirs, _ := filepath.Glob(filepath.Join(top, filepath.Base(dirPrefix)+"*"))
	seen := false
	for _, d := range dirs {
		seen = seen || d == dir
	}
	if !seen {
		dirs = append(dirs, dir)
	}
	for _, d := range dirs {
		entries, err := listDir(d)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.Err == nil && e.SegmentBytes > e.Allocated {
				bytes += e.SegmentBytes - e.Allocated
				caches++
			}
		}
	}
	return bytes, caches
}

// mountTop climbs to the topmost directory of the same file system.
func mountTop(dir string) string {
	var here, above unix.Stat_t
	if unix.Stat(dir, &here) != nil {
		return dir
	}
	for {
		parent := filepath.Dir(dir)
		if parent == dir || unix.Stat(parent, &above) != nil || above.Dev != here.Dev {
			return dir
		}
		dir = parent
	}
}
