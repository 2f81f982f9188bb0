package shm

import (
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Unlink removes a named cache. Attached processes keep it. It removes only segments of this user:
// regular files that begin like a segment, whether or not the rest is valid. It removes none that a server fills,
// because that server would give it out further on. Errors: ErrNotFound, ErrPermission (no segment, another user's, or
// a server's), ErrSystem.
func Unlink(nameOrPath string) error {
	path, err := locate(nameOrPath)
	if err != nil {
		return err
	}
	fd, readOnly, err := openFile(path, false)
	if err != nil {
		return err
	}
	locks := &fileLocks{fd: fd}
	defer locks.Close()
	if err := checkMagic(fd, path); err != nil {
		return err
	}
	if !readOnly { // a server that starts now waits for this lock, and then finds the name gone
		if free, err := locks.TryServer(); err != nil {
			return err
		} else if !free {
			return fail(ErrPermission, "%s belongs to a server, which would go on to give it out: take the cache out of the "+
				"server's configuration, and run stocached reload, which removes it", path)
		}
	}
	return unlinkSame(path, fd)
}

// checkMagic refuses to remove a file that does not begin like a segment.
func checkMagic(fd int, path string) error {
	page, err := readHeader(fd)
	if err == nil && (len(page) < len(Magic) || string(page[:len(Magic)]) != Magic) {
		err = fail(ErrPermission, "%s does not begin with %q: no segment, and nothing else is removed", path, Magic)
	}
	return err
}

// RemoveUnused removes a listed segment of any version, or the control part of a disk cache, unless a process uses it:
// false. It holds the users lock exclusively, so that no client can attach. Errors: ErrNotFound (another
// segment has its place by now), ErrPermission, ErrSystem.
func RemoveUnused(l *Listed) (removed bool, err error) {
	fd, err := l.open(false)
	if err != nil {
		return false, err
	}
	locks := &fileLocks{fd: fd}
	defer locks.Close()
	// A client takes the users lock, then looks whether the file has its name: it finds neither, or we find it.
	alone, err := locks.LastUser()
	if err != nil || !alone {
		return false, err
	}
	err = unlinkSame(l.Path, fd)
	return err == nil, err
}

// Remove unlinks the segment's path if it still names this file: for a last user. It returns
// ErrNotFound when the path is gone or names another file.
func (s *Segment) Remove() error {
	if s.path == "" {
		return fail(ErrNotFound, "%s has no path", s.describe())
	}
	defer runtime.KeepAlive(s)
	return unlinkSame(s.path, s.FD())
}

// unlinkSame removes path if it names the file of fd. Another process of this user may replace the
// file between check and unlink; that window is as short as a system call.
func unlinkSame(path string, fd int) error {
	var here, there unix.Stat_t
	if err := unix.Fstat(fd, &here); err != nil {
		return fail(ErrSystem, "stat: %w", err)
	}
	if err := unix.Lstat(path, &there); err != nil {
		return openError(path, err)
	}
	if here.Dev != there.Dev || here.Ino != there.Ino {
		return fail(ErrNotFound, "%s is another file by now", path)
	}
	if err := unix.Unlink(path); err != nil {
		return openError(filepath.Clean(path), err)
	}
	return nil
}
