package shm

import (
	"cmp"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// Room says how much memory new caches in a directory may take, for a program that creates several.
// It reserves nothing.
type Room struct {
	Device uint64       // device of the tmpfs: directories of one tmpfs have the same
	Tmpfs  memory.Space // free bytes of the tmpfs, less the promises of the caches in it
	// Memory is free memory of the machine and the cgroups of this process. Promises are not
	// subtracted.
	Memory memory.Space
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
	promised := memory.Promises{}
	addNamed(promised, dir, true)
	free, err := usable(0)
	return Room{st.Dev, memory.Tmpfs(&fs, dir, promised.Sum(memory.Level{})), free}, err
}

// usable is memory.Usable whose errors are ErrSystem.
func usable(age time.Duration) (memory.Space, error) {
	space, err := memory.Usable(age)
	if err != nil {
		return space, fail(ErrSystem, "%w", err)
	}
	return space, nil
}

// checkBudget returns ErrMemory, with the numbers and the next step, if the free memory is too
// small for a segment. fs and dir describe the tmpfs of a named cache; fs is nil for a memfd, which
// has no such limit. checkBudget reserves nothing: two processes can pass at the same moment, and
// the fills of one are FULL later. others: nil, or what the program that creates several caches has
// seen.
func checkBudget(need uint64, fs *unix.Statfs_t, dir string, others *Others) error {
	if others == nil {
		others = new(Others)
	}
	limits, err := memory.ReadLimits()
	if err != nil {
		return fail(ErrSystem, "%w", err)
	}
	for exact := false; ; exact = true {
		l := others.in(dir, fs != nil, exact)
		tmpfs := memory.Space{Left: memory.Unlimited}
		if fs != nil {
			tmpfs = memory.Tmpfs(fs, dir, l.tmpfs.Plus(l.here))
		}
		err := checkFits(need, tmpfs, limits.Tightest(l.sum))
		if err == nil || exact { // caches that were removed since the last look have memory again
			return err
		}
	}
}

// checkFits holds the bytes that a new segment needs against what tmpfs and memory leave.
func checkFits(need uint64, tmpfs, machine memory.Space) error {
	if need > tmpfs.Left {
		return fail(ErrMemory,
			"the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME), "+
				"enlarge it (mount -o remount,size=...), or "+
				"leave out the name: an unnamed cache is not bound to it", memory.Size(need), tmpfs.Text)
	}
	if need > machine.Left {
		return fail(ErrMemory,
			"the cache needs %s; %s; give a smaller limit (--size), remove caches (stocached gc, stocached rm NAME, "+
				"or end the processes of those without a name), or give it more memory",
			memory.Size(need), machine.Text)
	}
	return nil
}
