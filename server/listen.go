package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// listen returns the given socket, or listens on the socket of that name in the folder of the
// sockets. A group may use it; nil: only this user.
func (o *Options) listen(given *net.UnixListener, name string, group *uint32) (*net.UnixListener, error) {
	if given != nil {
		return given, nil // the service manager has set its mode
	}
	dir := o.socketsDir()
	if err := openFolder(dir, group); err != nil {
		return nil, err
	}
	l, err := listen(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	path, mode := filepath.Join(dir, name), os.FileMode(0o600)
	if group != nil {
		mode = 0o660
		if err = os.Chown(path, -1, int(*group)); err != nil {
			err = fmt.Errorf("give %s to group %d: %w; the server's user must be a member of it", path, *group, err)
		}
	}
	mark := os.WriteFile(filepath.Join(dir, servedMark), nil, 0o600)
	if err = errors.Join(err, os.Chmod(path, mode), mark); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// servedMark is a file that stays when a server ends in order: programs then wait for the next one. The
// folder alone says less, as those of servers on demand lie in it.
const servedMark = "served"

// openFolder makes the folder of the sockets if needed. A group, if any, can then reach the sockets
// in it.
func openFolder(dir string, group *uint32) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder of the sockets: %w", err)
	}
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case err != nil:
		return fmt.Errorf("folder of the sockets: %s: %w", dir, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() ||
		st.Mode&0o022 != 0: // perhaps another user's folder in /tmp
		return fmt.Errorf("%w: %s must be a folder of user id %d that no other user may write to; remove it, or set "+
			"sockets.dir", shm.ErrPermission, dir, os.Geteuid())
	}
	if group == nil || st.Mode&0o001 != 0 || st.Gid == *group && st.Mode&0o010 != 0 {
		return nil
	}
	if err := os.Chown(dir, -1, int(*group)); err != nil {
		return fmt.Errorf("give %s to group %d: %w; the server's user must be a member of it", dir, *group, err)
	}
	return os.Chmod(dir, os.FileMode(st.Mode&0o777|0o010))
}

// listen listens on a socket of this user. It replaces a socket without a listener, which a killed
// server left. ErrServed: the socket has a listener, even one that does not answer.
func listen(path string) (*net.UnixListener, error) {
	if len(path) > control.MaxSocketPath {
		return nil, fmt.Errorf("%w: the path of a socket has at most %d bytes, %s has %d; set sockets.dir or %s to "+
			"a shorter one", shm.ErrInvalid, control.MaxSocketPath, path, len(path),
			control.SocketsVariable)
	}
	alone, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("folder of the sockets: %w", err)
	}
	defer alone.Close()
	address := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", address)
	if errors.Is(err, unix.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		l, err = net.ListenUnix("unix", address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// lockFolder locks a folder until the file is closed, so that one server at a time removes stale
// sockets. Two servers that start together could otherwise remove each other's new socket.
func lockFolder(dir string) (*os.File, error) {
	folder, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		switch err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); {
		case err == nil:
			return folder, nil
		case !errors.Is(err, unix.EINTR):
			return nil, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: err}, folder.Close())
		}
	}
}

// removeStale removes a socket without a listener, and nothing else. Errors: ErrServed, ErrInvalid.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its server has just ended
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%w: %s exists and is not a socket; remove it, or set sockets.dir", shm.ErrInvalid, path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%w: another process answers on %s; end that server first, or set sockets.dir", ErrServed,
			path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w: another process listens on %s and does not answer (%w); end that server first, or set "+
			"sockets.dir", ErrServed, path, err)
	}
	return os.Remove(path)
}
