package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// budget holds the bytes that a new segment needs against the bytes that are free.
type budget struct {
	need uint64

	tmpfs    bool   // the segment has a name, and its tmpfs has a size
	dir      string // directory of the segment
	size     uint64 // of the tmpfs
	free     uint64 // in the tmpfs
	promised sum    // that other caches in it may still fill; a lazy cache leaves these bytes free

	memory Space // what the machine and the cgroups have free
}

// checkBudget returns ErrMemory, with the numbers and the next step, if the free memory is too
// small for a segment. fs and dir describe the tmpfs of a named cache; fs is nil for a memfd, which
// has no such limit. checkBudget reserves nothing: two processes can pass at the same moment, and
// the fills of one are FULL later. others: nil, or what the program that creates several caches has seen.
func checkBudget(need uint64, fs *unix.Statfs_t, dir string, others *Others) error {
	if others == nil {
		others = new(Others)
	}
	limits, err := (kernel{"/"}).memoryLimits()
	if err != nil {
		return err
	}
	for fresh := false; ; fresh = true {
		l, isNew := others.in(dir, fs != nil, fresh)
		b := budget{need: need, memory: tightest(limits, l.sum)}
		if fs != nil {
			b.setTmpfs(fs, dir, l.tmpfs.plus(l.here))
		}
		if err := b.check(); err == nil || isNew { // caches that were removed since the look have memory again
			return err
		}
	}
}

// setTmpfs adds the numbers of a named cache's tmpfs, and what other caches in it may still fill.
func (b *budget) setTmpfs(fs *unix.Statfs_t, dir string, promised sum) {
	if fs.Blocks != 0 { // size=0: no limit
		b.tmpfs, b.dir, b.size, b.free = true, dir, fs.Blocks*uint64(fs.Bsize), fs.Bavail*uint64(fs.Bsize)
		b.promised = promised
	}
}

// headroom is what the tmpfs keeps free for others: a tenth of its size, at most 1 GiB. Data
// loaders keep their queues in the same tmpfs (8 workers x 2 batches of 256 samples of 150 KB are
// 600 MB), and SIGBUS kills a worker when it is full. The limit is a tenth, because a container's
// /dev/shm may have 64 MB in all.
func (b *budget) headroom() uint64 { return min(b.size/HeadroomDivisor, HeadroomMax) }

func (b *budget) check() error {
	if s := b.inTmpfs(); b.need > s.Left {
		return fail(ErrMemory,
			"the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME), "+
				"enlarge it (mount -o remount,size=...), or "+
				"leave out the name: an unnamed cache is not bound to it", size(b.need), s.Text)
	}
	if b.need > b.memory.Left {
		return fail(ErrMemory,
			"the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME, "+
				"or end the processes of those without a name), or give it more memory",
			size(b.need), b.memory.Text)
	}
	return nil
}

// inTmpfs returns what the tmpfs has free for the segment.
func (b *budget) inTmpfs() Space {
	if !b.tmpfs {
		return Space{unlimited, "no tmpfs sets a limit"}
	}
	left := b.free - min(b.free, b.headroom())
	left -= min(left, b.promised.bytes)
	return Space{left,
		fmt.Sprintf("the tmpfs of %s has %s free of %s, less %s of headroom for data loaders, "+
			"less %s that other caches (%d) have yet to fill, leaves %s",
			b.dir, size(b.free), size(b.size), size(b.headroom()), size(b.promised.bytes), b.promised.caches, size(left))}
}

// size writes a number of bytes exactly, and rounded to MiB or GiB.
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
