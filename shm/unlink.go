package shm

import (
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Unlink removes a named cache; processes that are attached keep it. It removes nothing but segments of this user: regular files that begin
// as one, whether or not the rest verifies. ErrNotFound, ErrPermission (not a segment, or not ours), ErrSystem.
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

// Remove unlinks the segment's path if it still is this very file: for a last user. ErrNotFound when it is another by now, or gone.
func (s *Segment) Remove() error {
	if s.path == "" {
		return fail(ErrNotFound, "%s has no path", s.describe())
	}
	defer runtime.KeepAlive(s)
	return unlinkSame(s.path, s.FD())
}

// unlinkSame removes path if it is the file behind fd. Between looking and removing somebody else may replace it; only this user can, and the window
// is as small as a system call.
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
