// Package sockets finds the sockets of a server, and identifies the peer of a connection.
package sockets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"
)

// Folder is the folder where a client expects the sockets of a server.
type Folder struct {
	Path  string
	named bool // by an option or in the environment
}

// Find returns the given folder, else that of the environment, else the default one.
func Find(name string) Folder {
	if name = cmp.Or(name, os.Getenv(control.SocketsVariable)); name != "" {
		return Folder{name, true}
	}
	return Folder{Path: control.SocketsDir()}
}

// Dial connects to a socket in the folder, and sends nothing. It trusts servers of this user and of
// root. In a named folder it also trusts servers of the folder's owner, if root or this user gave
// the folder to that user. Errors: ErrPermission for all others, and for a folder in which another
// user may put a socket.
func (f Folder) Dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	trusted, err := f.trusted()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(f.Path, socket)
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, closed("connect to", path, err)
	}
	server := c.(*net.UnixConn)
	peer, err := PeerOf(server)
	if err == nil && !slices.Contains(trusted, peer.UID) {
		err = fmt.Errorf("%w: user id %d listens on %s, and you are %d; nothing was sent there", shm.ErrPermission,
			peer.UID, path, os.Geteuid())
	}
	if err != nil {
		server.Close()
		return nil, err
	}
	return server, nil
}

// closed makes ErrPermission of an error that says that a path is closed to this user. Others stay.
func closed(verb, path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s %s: permission denied; the server is another user's", shm.ErrPermission, verb, path)
	}
	return err
}

// trusted returns the users whose servers may listen in the folder.
func (f Folder) trusted() ([]int, error) {
	users := []int{os.Geteuid(), 0}
	stat := os.Stat
	if !f.named {
		stat = os.Lstat // it may lie in /tmp, where every user may put a symbolic link
	}
	info, err := stat(f.Path)
	if err != nil {
		return nil, closed("look at", f.Path, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is not a folder; set %s to the folder of your server", shm.ErrPermission, f.Path,
			control.SocketsVariable)
	}
	if owner := ownerOf(info); !slices.Contains(users, owner) {
		users = append(users, owner)
		if !f.named || !given(f.Path, users) {
			return nil, fmt.Errorf("%w: the folder of the sockets, %s, belongs to user id %d, and you are %d; set "+
				"%s to the folder of your server", shm.ErrPermission, f.Path, owner,
				os.Geteuid(), control.SocketsVariable)
		}
	}
	if others := info.Mode().Perm() & 0o022; others != 0 {
		return nil, fmt.Errorf("%w: the folder of the sockets, %s, has mode %04o, so that other users may put "+
			"sockets there; chmod go-w it, or set %s to the folder of your server",
			shm.ErrPermission, f.Path, info.Mode().Perm(), control.SocketsVariable)
	}
	return users, nil
}

// given says whether only these users can have put the folder there.
func given(path string, users []int) bool {
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	for err == nil && path != "/" {
		path = filepath.Dir(path)
		var info os.FileInfo
		if info, err = os.Stat(path); err == nil &&
			(!slices.Contains(users, ownerOf(info)) || info.Mode().Perm()&0o022 != 0) {
			return false
		}
	}
	return err == nil
}

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
