package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultDir is the directory of named caches: /dev/shm/stocached-<effective user id>, for one user
// alone. Create makes it for the first cache.
func DefaultDir() string { return fmt.Sprintf("%s%d", dirPrefix, os.Geteuid()) }

const dirPrefix = "/dev/shm/stocached-"

// OtherUsers returns the default directories of other users in which something lies. They are closed to this user, but a
// tmpfs counts the entries in the size of a directory.
func OtherUsers() (dirs []string) {
	const empty = 40 // bytes: . and ..
	all, _ := filepath.Glob(dirPrefix + "[0-9]*")
	for _, dir := range all {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() && dir != DefaultDir() && info.Size() > empty {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// locate turns a name into a path in DefaultDir. A text with a slash is a path already.
func locate(nameOrPath string) (string, error) {
	if strings.Contains(nameOrPath, "/") {
		return filepath.Clean(nameOrPath), nil
	}
	if err := CheckName(nameOrPath); err != nil {
		return "", err
	}
	return filepath.Join(DefaultDir(), nameOrPath), nil
}

// openDir opens the directory of named caches, and creates DefaultDir if create is true. DefaultDir
// MUST be a real directory of this user that no other user may enter, so that no other user can put
// files there. Any other directory is the user's choice.
func openDir(dir string, create bool) (int, error) {
	ours := dir == DefaultDir()
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	if ours {
		flags |= unix.O_NOFOLLOW
		if create {
			err := unix.Mkdir(dir, 0o700)
			if err == nil { // a umask may remove our own rights; /dev/shm is sticky, so no other user can have replaced it
				err = unix.Chmod(dir, 0o700)
			}
			if err != nil && err != unix.EEXIST {
				return -1, dirError("make", dir, err)
			}
		}
	}
	fd, err := unix.Open(dir, flags, 0)
	if err != nil {
		return -1, dirError("open", dir, err)
	}
	if err := checkDir(fd, dir, ours); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func checkDir(fd int, dir string, ours bool) error {
	if !ours {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return dirError("stat", dir, err)
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return fail(ErrPermission, "%s belongs to user %d, not to %d: remove it, or use another directory (--dir)", dir,
			st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fail(ErrPermission, "%s has mode %04o, others may enter it: chmod 700 %s", dir, st.Mode&0o7777, dir)
	}
	return nil
}

func dirError(verb, dir string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fail(ErrNotFound, "%s directory %s: %w", verb, dir, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return fail(ErrPermission,
			"%s is no directory, or a symbolic link: %w; remove it, or use another directory (--dir)", dir, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return fail(ErrPermission, "%s directory %s: %w", verb, dir, err)
	case errors.Is(err, unix.ENOSPC):
		return fail(ErrMemory, "%s directory %s: %w; remove caches (stocached gc) or enlarge the tmpfs", verb, dir, err)
	}
	return fail(ErrSystem, "%s directory %s: %w", verb, dir, err)
}

// noDir is the error for a directory other than DefaultDir that does not exist.
func noDir(dir string) error {
	return fail(ErrInvalid, "dir: %s: %w; make it, or mount a tmpfs there", dir, unix.ENOENT)
}

// checkTmpfs refuses a directory outside a tmpfs: a disk file system writes pages back, and its
// locks and maps may behave differently.
func checkTmpfs(fd int, dir string) (unix.Statfs_t, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fs, fail(ErrSystem, "statfs %s: %w", dir, err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		next := "leave it out (" + DefaultDir() + "), or mount one there"
		if dir == DefaultDir() {
			next = "mount one at /dev/shm, or give a folder on another tmpfs"
		}
		return fs, fail(ErrInvalid, "dir: %s is on a file system of type %#x, not on a tmpfs; %s", dir, fs.Type, next)
	}
	return fs, nil
}
