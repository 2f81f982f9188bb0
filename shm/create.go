package shm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// Create makes a cache and attaches to it. It links the name last: no process sees an incomplete
// segment, and a failure or a kill at any point leaves no file. It replaces a segment of another version that no
// process uses.
//
// Errors: ErrInvalid lists everything that is wrong with the options. ErrExists: the name is taken;
// attach instead. ErrVersion: processes use a segment of another version of that name. ErrMemory: the cache does not fit, with the numbers (Limit, free space of the
// tmpfs, cgroup, machine, RLIMIT_FSIZE). ErrPermission: the directory belongs to another user.
// ErrUnsupported: no O_TMPFILE, or no memfd.
func Create(o Options) (*Segment, error) {
	h, g, err := o.Plan()
	if err != nil {
		return nil, err
	}
	h.Stamp()
	if err := CheckFileSize(g.SegmentBytes); err != nil {
		return nil, err
	}
	if o.Name == "" {
		return createUnnamed(h, g, &o)
	}
	return createNamed(h, g, &o)
}

// SegmentBytes returns the size of the segment that Create would make. Errors: ErrInvalid;
// ErrMemory when Limit is too small.
func (o *Options) SegmentBytes() (uint64, error) {
	_, g, err := o.Plan()
	return g.SegmentBytes, err
}

func createNamed(h Header, g Geometry, o *Options) (*Segment, error) {
	dir := filepath.Clean(cmp.Or(o.Dir, DefaultDir()))
	path := filepath.Join(dir, h.Name)
	dirFD, err := openDir(dir, true)
	if errors.Is(err, ErrNotFound) {
		return nil, noDir(dir)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(dirFD)
	if _, err := checkTmpfs(dirFD, dir); err != nil {
		return nil, err
	}
	replaced, err := makeWay(path, g.Policy)
	if err != nil {
		return nil, err
	}
	fs, err := checkTmpfs(dirFD, dir) // again: the replaced segment has freed its memory
	if err == nil {
		err = checkBudget(g.SegmentBytes, &fs, dir, o.Others)
	}
	if err != nil && replaced != nil {
		err = fmt.Errorf("%w; the old segment, of another version, is removed", err)
	}
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dirFD, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, createError("make a file in "+dir, &g, err)
	}
	s, err := initialise(os.NewFile(uintptr(fd), path), h, g, o.Progress)
	if err != nil {
		return nil, err
	}
	s.path, s.Replaced = path, replaced
	if err := s.name(dirFD); err != nil {
		s.Close()
		return nil, err
	}
	o.Others.created(s)
	return s, nil
}

// name links the file to its name. It takes the users lock first. Otherwise another process could
// attach, become the last user and remove the file before this process is a user.
func (s *Segment) name(dirFD int) error {
	var err error
	if s.first, err = lockFile(s.FD(), "", false); err != nil {
		return err
	}
	err = linkFile(s.FD(), dirFD, s.Header.Name)
	if errors.Is(err, unix.EEXIST) {
		return existsError(s.path, s.Policy)
	}
	if err != nil {
		return createError("name it "+s.path, &s.Geometry, err)
	}
	return nil
}

// linkFile gives a name to an open file that has none.
func linkFile(fd, dirFD int, name string) error {
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), dirFD, name, unix.AT_SYMLINK_FOLLOW)
}

func createUnnamed(h Header, g Geometry, o *Options) (*Segment, error) {
	if err := checkBudget(g.SegmentBytes, nil, "", o.Others); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s%x", memfdPrefix, h.UUID[:4])
	// MFD_NOEXEC_SEAL: some kernels since 6.3 refuse memfds that do not declare that they are not
	// executable.
	const noexec = 0x8 // MFD_NOEXEC_SEAL
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|noexec)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, createError("make a memfd", &g, err)
	}
	s, err := initialise(os.NewFile(uintptr(fd), name), h, g, o.Progress)
	if err != nil {
		return nil, err
	}
	// No process can truncate a sealed memfd under its readers.
	if _, err := unix.FcntlInt(uintptr(s.FD()), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		s.Close()
		return nil, createError("seal the memfd", &g, err)
	}
	o.Others.created(s)
	return s, nil
}

// memfdPrefix begins the name of each unnamed cache. ls finds such caches through /proc.
const memfdPrefix = "stocached:"

// initialise sizes and maps the file, and allocates its control part: access to a hole raises
// SIGBUS when the tmpfs is full. It allocates the payload if that is to be reserved, and writes the
// header. Index, tables and words begin as zeros. It closes f on failure.
func initialise(f *os.File, h Header, g Geometry, progress func(done, total uint64)) (*Segment, error) {
	s := &Segment{Header: h, file: f}
	if err := s.initialise(&g, progress); err != nil {
		err = errors.Join(err, s.maps.unmap())
		f.Close()
		return nil, err
	}
	s.Geometry = g
	s.control, s.payload = s.maps.control, s.maps.payload
	return s, nil
}

func (s *Segment) initialise(g *Geometry, progress func(done, total uint64)) error {
	fd := s.FD()
	if err := unix.Fchmod(fd, 0o600); err != nil { // against any umask
		return createError("chmod", g, err)
	}
	if err := unix.Ftruncate(fd, int64(g.SegmentBytes)); err != nil {
		return createError("size it", g, err)
	}
	var err error
	if s.maps, err = mapSegment(s.file, g, false); err != nil {
		return err
	}
	if hugePagesAllowed() {
		beginHuge(fd, s.maps.control, g.IndexOffset)
	} else {
		s.huge.stop()
	}
	if err := memory.Allocate(fd, 0, g.PayloadOffset, nil); err != nil {
		return createError("allocate the control part", g, err)
	}
	if s.Header.Flags&FlagReserved != 0 {
		// Other processes may take memory between two steps. Check it before each step, or the
		// kernel kills instead of refusing.
		grant := func(done, total uint64) (uint64, error) {
			if progress != nil && done > 0 {
				progress(done, total)
			}
			if done == total {
				return 0, nil
			}
			space, err := usable(0)
			if err != nil {
				return 0, err
			}
			return grantOf(space)
		}
		if err := memory.Allocate(fd, g.PayloadOffset, g.SegmentBytes-g.PayloadOffset, grant); err != nil {
			return createError("reserve the payload", g, err)
		}
	}
	page := s.Header.Encode(g)
	if n, err := unix.Pwrite(fd, page, 0); err != nil || n != len(page) {
		return createError(fmt.Sprintf("write the header (%d of %d bytes)", n, len(page)), g, err)
	}
	return nil
}

// grantOf returns how many bytes may be allocated before the next check of the memory. It returns
// ErrFull, with the numbers, when that is 0.
func grantOf(space memory.Space) (uint64, error) {
	granted := memory.Granted(space.Left) &^ uint64(os.Getpagesize()-1)
	if granted == 0 {
		return 0, fail(ErrFull, "%s", space.Text)
	}
	return granted, nil
}

// existsError names both policies if they differ, because a program that attaches then gets a cache that it did
// not ask for.
func existsError(path string, policy Policy) error {
	if there, err := Open(path, OpenOptions{ReadOnly: true}); err == nil {
		defer there.Close()
		if there.Policy != policy {
			path = fmt.Sprintf("%s exists with the policy %v, and %v was asked for", path, there.Policy, policy)
		}
	}
	return fail(ErrExists, "%s; attach to it, take another name, or remove it first (stocached rm)", path)
}

func createError(what string, g *Geometry, err error) error {
	switch {
	case errors.Is(err, ErrSystem):
		return err
	case errors.Is(err, ErrFull), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT),
		errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EFBIG):
		return fail(ErrMemory,
			"%s: %w; the segment has %d bytes, %d of them taken at once; give a smaller limit (--size), "+
				"remove caches (stocached gc), or enlarge the tmpfs",
			what, err, g.SegmentBytes, g.PayloadOffset)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return fail(ErrPermission, "%s: %w", what, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOSYS):
		return fail(ErrUnsupported, "%s: %w; Linux 3.17 with tmpfs is needed", what, err)
	}
	return fail(ErrSystem, "%s: %w", what, err)
}

// CheckFileSize refuses a segment above RLIMIT_FSIZE, because writing it would raise SIGXFSZ.
func CheckFileSize(segmentBytes uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return fail(ErrSystem, "getrlimit: %w", err)
	}
	if segmentBytes > limit.Cur {
		return fail(ErrMemory,
			"the segment has %d bytes, this process may write files of %d only (RLIMIT_FSIZE); "+
				"raise it (ulimit -f), or attach read-only",
			segmentBytes, limit.Cur)
	}
	return nil
}
