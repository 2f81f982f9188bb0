package shm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenOptions say how to attach. The zero value attaches for writing if that is allowed, and
// compares nothing.
type OpenOptions struct {
	ReadOnly    bool      // attach for reading, even if writing is allowed
	Fingerprint string    // the fingerprint that the cache must have; "": not compared
	UUID        *[16]byte // the uuid that the segment must have; nil: not compared
}

// Open attaches to a cache by name (in DefaultDir) or, with a slash, by path. /proc/<pid>/fd/<fd>
// of a process of this user is a path too, the only one of a cache without a name. Without
// permission to write, Open attaches read-only. It reads the header and maps the file, so its time
// does not depend on the size.
//
// Errors: ErrNotFound, ErrPermission (another user's file; a symbolic link, directory, FIFO or
// device; no permission to read), ErrFormat (no segment, truncated, invalid header), ErrVersion,
// ErrFingerprint, ErrMemory (RLIMIT_FSIZE, RLIMIT_AS), ErrSystem.
func Open(nameOrPath string, o OpenOptions) (*Segment, error) {
	path, err := locate(nameOrPath)
	if err != nil {
		return nil, err
	}
	fd, readOnly, err := openFile(path, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	s, err := attach(os.NewFile(uintptr(fd), path), readOnly, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !isProcFD(path) {
		s.path, s.byName = path, true
	}
	return s, nil
}

// isProcFD says whether a path is a descriptor of a process. Such a path looks like a symbolic
// link, but opening it opens the file of the descriptor.
func isProcFD(path string) bool {
	ok, _ := filepath.Match("/proc/*/fd/*", path)
	return ok
}

// OpenFD attaches through a descriptor of the segment. The caller keeps the descriptor. It is for
// memfds that are inherited, or opened through /proc/<pid>/fd/<fd>: the uuid tells whether the
// descriptor still means the same segment. It returns the errors of Open; another uuid is
// ErrFormat.
func OpenFD(fd int, o OpenOptions) (*Segment, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fail(ErrInvalid, "descriptor %d: %w", fd, err)
	}
	if flags&(unix.O_PATH|unix.O_APPEND) != 0 || flags&unix.O_ACCMODE == unix.O_WRONLY {
		return nil, fail(ErrInvalid,
			"descriptor %d has the flags %#o: open it O_RDWR or O_RDONLY, without O_PATH and O_APPEND (which would move "+
				"every write to the end)", fd, flags)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fail(ErrSystem, "duplicate descriptor %d: %w", fd, err)
	}
	s, err := attach(os.NewFile(uintptr(own), "segment"), o.ReadOnly || flags&unix.O_ACCMODE == unix.O_RDONLY, o)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	if link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil &&
		s.Header.Flags&FlagNamed != 0 && !strings.HasSuffix(link, " (deleted)") {
		s.path = link
	}
	return s, nil
}

// openFile opens a regular file of this user. It follows no symbolic link, does not wait on a FIFO
// and opens no device. It refuses files in a DefaultDir that belongs to another user.
func openFile(path string, readOnly bool) (fd int, isReadOnly bool, err error) {
	if dir := filepath.Dir(path); dir == DefaultDir() {
		dirFD, err := openDir(dir, false)
		if errors.Is(err, ErrNotFound) {
			return -1, false, openError(path, unix.ENOENT)
		}
		if err != nil {
			return -1, false, err
		}
		unix.Close(dirFD)
	}
	stat, flags := unix.Lstat, unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY
	if isProcFD(path) {
		stat = unix.Stat
	} else {
		flags |= unix.O_NOFOLLOW
	}
	if err := checkFile(path, func(st *unix.Stat_t) error { return stat(path, st) }); err != nil {
		return -1, false, err
	}
	mode := unix.O_RDWR
	if readOnly {
		mode = unix.O_RDONLY
	}
	fd, err = unix.Open(path, mode|flags, 0)
	if mode == unix.O_RDWR && (err == unix.EACCES || err == unix.EROFS || err == unix.EPERM) {
		mode = unix.O_RDONLY
		fd, err = unix.Open(path, mode|flags, 0)
	}
	if err != nil {
		return -1, false, openError(path, err)
	}
	// Another process may have replaced the file between the check and the open.
	if err := CheckFile(fd, path); err != nil {
		unix.Close(fd)
		return -1, false, err
	}
	return fd, mode == unix.O_RDONLY, nil
}

// CheckFile refuses an open file that cannot be a segment of this user: one of another kind or user.
// path is for messages. It returns errors of Open.
func CheckFile(fd int, path string) error {
	return checkFile(path, func(st *unix.Stat_t) error { return unix.Fstat(fd, st) })
}

func checkFile(path string, stat func(*unix.Stat_t) error) error {
	var st unix.Stat_t
	if err := stat(&st); err != nil {
		return openError(path, err)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG {
		name := map[uint32]string{unix.S_IFLNK: "a symbolic link", unix.S_IFDIR: "a directory",
			unix.S_IFIFO: "a FIFO", unix.S_IFSOCK: "a socket"}[kind]
		return fail(ErrPermission, "%s is %s, not a cache; remove it or take another name", path, cmp.Or(name, "a device"))
	}
	if int(st.Uid) != os.Geteuid() {
		return fail(ErrPermission, "%s belongs to user %d, not to %d; a cache is for one user", path, st.Uid, os.Geteuid())
	}
	return nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fail(ErrNotFound, "%s: %w; stocached ls lists the caches", path, err)
	case errors.Is(err, unix.ELOOP):
		return fail(ErrPermission, "%s is a symbolic link: %w", path, err)
	case isProcFD(path) && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		return fail(ErrPermission, "%s: %w: the process is not dumpable, or another user's; give the cache a name", path, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return fail(ErrPermission, "%s: %w", path, err)
	}
	return fail(ErrSystem, "open %s: %w", path, err)
}

// attach checks and maps an open file. It closes f on failure.
func attach(f *os.File, readOnly bool, o OpenOptions) (*Segment, error) {
	s := &Segment{file: f, readOnly: readOnly}
	if err := s.attach(o); err != nil {
		f.Close()
		return nil, err
	}
	s.control, s.payload = s.maps.control, s.maps.payload
	return s, nil
}

func (s *Segment) attach(o OpenOptions) error {
	fd := s.FD()
	if err := CheckFile(fd, "it"); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(ErrSystem, "stat: %w", err)
	}
	page, err := readHeader(fd)
	if err != nil {
		return err
	}
	if s.Header, s.Geometry, err = DecodeHeader(page, uint64(st.Size)); err != nil {
		return err
	}
	if o.UUID != nil && *o.UUID != s.Header.UUID {
		return fail(ErrFormat,
			"uuid %x, expected %x: this is another segment; the process that held the expected one is gone",
			s.Header.UUID, *o.UUID)
	}
	if o.Fingerprint != "" && o.Fingerprint != s.Header.Fingerprint {
		return fail(ErrFingerprint,
			"the cache has the fingerprint %q, the caller asked for %q; remove it (stocached rm) or take another name",
			s.Header.Fingerprint, o.Fingerprint)
	}
	if !s.readOnly {
		if err := CheckFileSize(s.SegmentBytes); err != nil {
			return err
		}
	}
	if s.readOnly || !hugePagesAllowed() {
		s.huge.stop()
	}
	s.maps, err = mapSegment(s.file, &s.Geometry, s.readOnly)
	return err
}

// readHeader reads the first page, or less if the file is shorter. It uses pread, because access to
// a map raises SIGBUS when another process truncates the file.
func readHeader(fd int) ([]byte, error) {
	page := make([]byte, HeaderBytes)
	done := 0
	for done < len(page) {
		n, err := unix.Pread(fd, page[done:], int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fail(ErrSystem, "read the header: %w", err)
		}
		if n == 0 {
			break
		}
		done += n
	}
	return page[:done], nil
}
