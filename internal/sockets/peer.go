package sockets

import (
	"encoding/binary"
	"errors"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a unix socket, which connected or listens. The kernel
// recorded it at that moment.
type Peer struct {
	UID    int
	Groups []uint32 // as the kernel reports: the effective group, and since Linux 4.13 the supplementary ones
}

// PeerOf asks the kernel for the peer. With an error the user is -1, which no user has.
func PeerOf(socket *net.UnixConn) (p Peer, err error) {
	unknown := Peer{UID: -1}
	raw, err := socket.SyscallConn()
	if err != nil {
		return unknown, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		p = Peer{int(cred.Uid), []uint32{cred.Gid}}
		var more []uint32
		if more, failed = peerGroups(fd); errors.Is(failed, unix.ENOPROTOOPT) { // an older kernel
			failed = nil
		}
		p.Groups = append(p.Groups, more...)
	})
	if err = errors.Join(err, failed); err != nil {
		return unknown, err
	}
	return p, nil
}

// peerGroups returns the supplementary groups. If the buffer is too short, the kernel returns the
// needed size.
func peerGroups(fd uintptr) ([]uint32, error) {
	b := make([]byte, 4*64)
	for {
		n := uint32(len(b))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&n)), 0)
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
