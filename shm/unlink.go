package shm

import (
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Unlink removes a named cache. Attached processes keep it. It removes only segments of this user:
// regular files that begin like a segment, whether or not the rest is valid. Errors: ErrNotFound,
// ErrPermission (no segment, or another user's), ErrSystem.
func Unlink(nameOrPath string) error {
	path, err := locate(nameOrPath)
	if err != nil {
		return err
	}
	fd, _, err := openFile(path, true)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	page, err := readHeader(fd)
	if err != nil {
		return err
	}
	if len(page) < len(Magic) || string(page[:len(Magic)]) != Magic {
		return fail(ErrPermission, "%s does not begin with %q: no segment, and nothing else is removed", path, Magic)
	}
	return unlinkSame(path, fd)
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
