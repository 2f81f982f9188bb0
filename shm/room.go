package shm

import (
	"cmp"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Room says how much memory new caches in a directory may take, for a program that creates several.
// It reserves nothing.
type Room struct {
	Device uint64 // of the tmpfs: directories of one tmpfs have the same
	Tmpfs  Space  // free bytes of the tmpfs, less the promises of the caches in it
	Memory Space  // free memory of the machine and the cgroups of this process. Promises are not subtracted
}

// Space is what one limit leaves.
type Space struct {
	Left uint64 // bytes; 2^64 - 1 without a limit
	Text string // the calculation, with the numbers, for messages
}

// RoomIn inspects a directory; "" means DefaultDir, and the nearest existing one above it if the first cache has yet to
// make it. It returns ErrInvalid for a directory that does not exist or is outside a tmpfs, and ErrSystem.
func RoomIn(dir string) (Room, error) {
	dir = filepath.Clean(cmp.Or(dir, DefaultDir()))
	there := dir
	fd, err := unix.Open(there, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.ENOENT) && filepath.Dir(there) != there {
		if dir != DefaultDir() {
			return Room{}, noDir(dir)
		}
		there = filepath.Dir(there)
		fd, err = unix.Open(there, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return Room{}, dirError("open", there, err)
	}
	defer unix.Close(fd)
	fs, err := checkTmpfs(fd, dir)
	if err != nil {
		return Room{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Room{}, fail(ErrSystem, "stat %s: %w", there, err)
	}
	var b budget
	others := promises{}
	others.addNamed(dir)
	b.setTmpfs(&fs, dir, others.sum(level{}))
	memory, err := (kernel{"/"}).usable()
	return Room{st.Dev, b.inTmpfs(), memory}, err
}

// MemoryLeft returns the tightest limit on the memory of this process, of the machine or of a cgroup, and how much of it
// caches may still fill. Errors: ErrSystem.
func MemoryLeft() (left, limit uint64, err error) {
	r, err := (kernel{"/"}).tightest()
	return r.usable(), r.total, err
}

// SegmentBytes returns the size of the segment that Create would make. Errors: ErrInvalid;
// ErrMemory when Limit is too small.
func (o *Options) SegmentBytes() (uint64, error) {
	_, g, err := o.plan()
	return g.SegmentBytes, err
}

// Allocated returns the bytes of the file's pages; 0 for a heap segment. It returns ErrSystem.
func (s *Segment) Allocated() (uint64, error) {
	if s.file == nil {
		return 0, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.FD(), &st); err != nil {
		return 0, fail(ErrSystem, "stat %s: %w", s.describe(), err)
	}
	return uint64(st.Blocks) * 512, nil
}
