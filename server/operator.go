package server

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"

	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"
)

// isOwner says whether a peer runs as our own user or as root.
func isOwner(p sockets.Peer) bool { return p.UID == 0 || p.UID == os.Getuid() }

// mayAdminister says whether a peer is the owner or a member of the group of operators. nil: there
// is no group.
func mayAdminister(p sockets.Peer, group *uint32) bool {
	return isOwner(p) || group != nil && slices.Contains(p.Groups, *group)
}

// groupID finds a group by its name or number. It returns nil for "". Errors: ErrInvalid.
func groupID(name string) (*uint32, error) {
	if name == "" {
		return nil, nil
	}
	text := name
	if _, err := strconv.ParseUint(name, 10, 32); err != nil {
		g, err := user.LookupGroup(name)
		if err != nil {
			return nil, fmt.Errorf("%w: admin.group: there is no group %q on this machine", shm.ErrInvalid, name)
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
