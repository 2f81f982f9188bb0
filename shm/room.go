package shm

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Room says what new caches in a directory can take, for who makes several and wants to know before the first. It reserves nothing.
type Room struct {
	Device uint64 // of the tmpfs: directories of one tmpfs have the same
	Tmpfs  Space  // what it leaves, after what is in it already and what caches in it have yet to fill
	Memory Space  // what the machine and the cgroups of this process leave, after what is in use. Caches that are not full yet are not subtracted
}

// Space is what one limit leaves.
type Space struct {
	Left uint64 // bytes; 2^64 - 1 where there is no limit
	Text string // how that comes about, with the numbers, for messages
}

// RoomIn looks at a directory, or, while it does not exist, at the nearest one above; "": DefaultDir. ErrInvalid when it is not on a tmpfs, ErrSystem.
func RoomIn(dir string) (Room, error) {
	if dir == "" {
		dir = DefaultDir()
	}
	dir = filepath.Clean(dir)
	there := dir
	fd, err := unix.Open(there, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.ENOENT) && filepath.Dir(there) != there {
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
	b.setTmpfs(&fs, dir, promises{})
	memory, err := (kernel{"/"}).usable()
	return Room{st.Dev, b.inTmpfs(), memory}, err
}

// SegmentBytes returns how large a segment Create makes of the options. ErrInvalid; ErrMemory when Limit is too small for anything.
func (o *Options) SegmentBytes() (uint64, error) {
	_, g, err := o.plan()
	return g.SegmentBytes, err
}

// Allocated returns the bytes of pages that the segment's file has now; 0 on the heap. ErrSystem.
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
