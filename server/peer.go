package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// peer is who connected to a unix socket, as the kernel knows it from that moment.
type peer struct {
	uid    int
	groups []uint32 // all that the kernel tells of: the effective one, and since Linux 4.13 the supplementary ones
}

// isOwner: our own user, and root.
func (p peer) isOwner() bool { return p.uid == 0 || p.uid == os.Getuid() }

// mayAdminister says whether operators of a group, nil for none, include who connected.
func (p peer) mayAdminister(group *uint32) bool {
	return p.isOwner() || group != nil && slices.Contains(p.groups, *group)
}

// peerOf asks the kernel. On an error the user is -1, and nobody.
func peerOf(socket *net.UnixConn) (p peer, err error) {
	nobody := peer{uid: -1}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nobody, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		p = peer{int(cred.Uid), []uint32{cred.Gid}}
		var more []uint32
		if more, failed = peerGroups(fd); errors.Is(failed, unix.ENOPROTOOPT) { // an older kernel
			failed = nil
		}
		p.groups = append(p.groups, more...)
	})
	if err = errors.Join(err, failed); err != nil {
		return nobody, err
	}
	return p, nil
}

// peerGroups returns the supplementary groups. The kernel says how many bytes it has when the buffer is too short.
func peerGroups(fd uintptr) ([]uint32, error) {
	b := make([]byte, 4*64)
	for {
		n := uint32(len(b))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&n)), 0)
		switch {
		case errno == unix.ERANGE && int(n) > len(b):
			b = make([]byte, n)
			continue
		case errno != 0:
			return nil, errno
		}
		groups := make([]uint32, n/4)
		for k := range groups {
			groups[k] = binary.NativeEndian.Uint32(b[4*k:])
		}
		return groups, nil
	}
}

// groupID finds a group by its name or number; nil for "". ErrInvalid.
func groupID(name string) (*uint32, error) {
	if name == "" {
		return nil, nil
	}
	text := name
	if _, err := strconv.ParseUint(name, 10, 32); err != nil {
		g, err := user.LookupGroup(name)
		if err != nil {
			return nil, fmt.Errorf("%w: admin.group: %w", shm.ErrInvalid, err)
		}
		text = g.Gid
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: admin.group: %s has the number %s: %w", shm.ErrInvalid, name, text, err)
	}
	id := uint32(n)
	return &id, nil
}
