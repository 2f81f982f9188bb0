package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// listen listens on a socket: on the one given, else on one of that name in the folder of the sockets. A group may use it; nil: only this user.
func (o *Options) listen(given *net.UnixListener, name string, group *uint32) (*net.UnixListener, error) {
	if given != nil {
		return given, nil // whoever made it has said who may use it
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
	if err = errors.Join(err, os.Chmod(path, mode)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// openFolder makes the folder of the sockets if need be, and lets a group, if any, reach what is in it.
func openFolder(dir string, group *uint32) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder of the sockets: %w", err)
	}
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case err != nil:
		return fmt.Errorf("folder of the sockets: %s: %w", dir, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0: // somebody else's in /tmp, perhaps
		return fmt.Errorf("%w: %s must be a folder of user id %d that nobody else may write to; remove it, or set sockets.dir", shm.ErrPermission, dir, os.Geteuid())
	}
	if group == nil || st.Mode&0o001 != 0 || st.Gid == *group && st.Mode&0o010 != 0 {
		return nil
	}
	if err := os.Chown(dir, -1, int(*group)); err != nil {
		return fmt.Errorf("give %s to group %d: %w; the server's user must be a member of it", dir, *group, err)
	}
	return os.Chmod(dir, os.FileMode(st.Mode&0o777|0o010))
}

// listen listens on a socket of this user. One that nobody answers on is an earlier server's, and is replaced; ErrServed when somebody does.
func listen(path string) (*net.UnixListener, error) {
	if len(path) > 107 {
		return nil, fmt.Errorf("%w: the path of a socket has at most 107 bytes, %s has %d; set sockets.dir or %s to a shorter one", shm.ErrInvalid, path, len(path), control.SocketsVariable)
	}
	address := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", address)
	if errors.Is(err, unix.EADDRINUSE) {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("%w: somebody answers on %s; end that server first, or set sockets.dir", ErrServed, path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		l, err = net.ListenUnix("unix", address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}
