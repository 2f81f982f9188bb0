package shm

import (
	"fmt"

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

	memory Space // what the machine and the cgroups leave
}

// checkBudget refuses a segment that memory has no room for: ErrMemory, with the numbers and what to do. fs and dir describe the tmpfs of a named cache; a memfd (fs nil) knows
// no such limit. It reserves nothing: two creators at the same moment can both pass, and the fills of the second are then refused as FULL.
func checkBudget(need uint64, fs *unix.Statfs_t, dir string) error {
	k, others := kernel{"/"}, promises{}
	b := budget{need: need}
	if fs != nil {
		b.setTmpfs(fs, dir, others)
	}
	if dir != DefaultDir() {
		others.addNamed(DefaultDir())
	}
	others.addAttached(k)
	rooms, err := k.rooms()
	if err != nil {
		return err
	}
	b.memory = others.tightest(rooms)
	return b.check()
}

// setTmpfs adds the tmpfs of a named cache, and notes the caches in it.
func (b *budget) setTmpfs(fs *unix.Statfs_t, dir string, others promises) {
	others.addNamed(dir)
	if fs.Blocks != 0 { // size=0: no limit
		b.tmpfs, b.dir, b.size, b.free = true, dir, fs.Blocks*uint64(fs.Bsize), fs.Bavail*uint64(fs.Bsize)
		b.promised, b.others = others.sum(level{})
	}
}

// headroom is what the tmpfs keeps for others: a tenth of it, at most 1 GiB. The queues of data loaders lie in the same tmpfs (8 workers x 2 batches of 256 samples of
// 150 KB are 600 MB), and a worker that finds it full dies of SIGBUS. A tenth, because a container's /dev/shm may have 64 MB in all.
func (b *budget) headroom() uint64 { return min(b.size/HeadroomDivisor, HeadroomMax) }

func (b *budget) check() error {
	if s := b.inTmpfs(); b.need > s.Left {
		return fail(ErrMemory, "the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME), enlarge it (mount -o remount,size=...), or "+
			"leave out the name: an unnamed cache is not bound to it", size(b.need), s.Text)
	}
	if b.need > b.memory.Left {
		return fail(ErrMemory, "the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME, or end the processes of those without a name), or give it more memory",
			size(b.need), b.memory.Text)
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
