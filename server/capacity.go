package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"

	"golang.org/x/sys/unix"
)

// checkCapacity checks, before it is created, whether the segment of each coming cache fits beside
// those that stay, and whether the process may open so many files. ErrMemory has the numbers. total is the operator's bound on all segments; 0:
// none. An existing segment of the same data and size needs no more of the tmpfs. Any other
// existing segment is removed, and its pages count as free unless another process has attached it.
// Nothing is reserved: other processes may take the free memory.
func checkCapacity(total uint64, staying []*served.Cache, coming []*served.Prepared) error {
	var n needs
	for _, h := range staying {
		if err := n.stays(h); err != nil {
			return err
		}
	}
	for _, p := range coming {
		if err := n.comes(p); err != nil {
			return err
		}
	}
	if err := checkDescriptors(len(n.all.list)); err != nil {
		return err
	}
	if total != 0 && n.all.bytes > total {
		return fmt.Errorf("%w: the caches of this server are %s in all (%v), and limits.total is %s; give them "+
			"smaller sizes (size), or raise it", shm.ErrMemory, size.Text(n.all.bytes), n.all, size.Text(total))
	}
	for _, t := range n.tmpfs {
		if t.bytes > t.space.Left && t.bytes-t.space.Left > t.freed {
			return fmt.Errorf("%w: new segments of %s are needed (%v); %s; give the caches smaller sizes (size), "+
				"remove others (stocached gc, stocached rm NAME), or enlarge the tmpfs "+
				"(mount -o remount,size=...)", shm.ErrMemory, size.Text(t.bytes), t.segments, t.space.Text)
		}
	}
	if len(coming) > 0 && n.unfilled > n.memory.Left && n.unfilled-n.memory.Left > n.freed {
		return fmt.Errorf("%w: the caches of this server may still take %s (%s in all: %v); %s; give them smaller "+
			"sizes (size), or the machine or cgroup more memory", shm.ErrMemory,
			size.Text(n.unfilled), size.Text(n.all.bytes), n.all, n.memory.Text)
	}
	return nil
}

// spareDescriptors are those for sockets, connections and files of sources.
const spareDescriptors = 64

// checkDescriptors returns ErrMemory if the process may not open enough files for so many caches: a segment and its lock
// description each.
func checkDescriptors(caches int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if need := uint64(2*caches + spareDescriptors); need > limit.Cur {
		return fmt.Errorf("%w: %d caches need %d open files, and the limit is %d; raise it (ulimit -n, LimitNOFILE= in a "+
			"unit file), or give this server fewer caches", shm.ErrMemory, caches, need, limit.Cur)
	}
	return nil
}

// needs are what the caches of a server need.
type needs struct {
	all      segments
	unfilled uint64              // bytes of all that have no memory yet
	freed    uint64              // memory of segments that are removed
	memory   memory.Space        // the machine and the cgroup; known once a cache comes
	tmpfs    map[uint64]*tmpfs   // by device
	rooms    map[string]shm.Room // by folder
}

// room looks at a folder once: a look reads all caches in it.
func (n *needs) room(dir string) (shm.Room, error) {
	if room, known := n.rooms[dir]; known {
		return room, nil
	}
	room, err := shm.RoomIn(dir)
	if err == nil {
		if n.rooms == nil {
			n.rooms = map[string]shm.Room{}
		}
		n.rooms[dir] = room
	}
	return room, err
}

// tmpfs is what the new segments in one tmpfs need.
type tmpfs struct {
	segments
	space memory.Space
	freed uint64
}

// segments are the sum of some segments.
type segments struct {
	bytes uint64
	list  []string
}

func (s *segments) add(name string, bytes uint64) {
	s.bytes += bytes
	s.list = append(s.list, fmt.Sprintf("%s %s", name, size.Text(bytes)))
}

func (s segments) String() string { return fewNames(s.list) }

// fewNames is a list for a message: a server may have thousands of caches.
func fewNames(names []string) string {
	const most = 20
	if n := len(names) - most; n > 0 {
		names = append(slices.Clip(names[:most]), fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// stays adds a cache that the server has.
func (n *needs) stays(h *served.Cache) error {
	if !h.Enter() {
		return nil
	}
	defer h.Leave()
	bytes := h.Segment().SegmentBytes
	n.all.add(h.Name, bytes)
	allocated, err := h.Segment().AllocatedBytes()
	n.unfilled += bytes - min(allocated, bytes)
	return err
}

// comes adds a cache that is to be made or adopted.
func (n *needs) comes(p *served.Prepared) error {
	n.all.add(p.Options.Name, p.Bytes)
	room, err := n.room(p.Options.Dir)
	if err != nil {
		return fmt.Errorf("cache %s: %w", p.Options.Name, err)
	}
	n.memory = room.Memory
	there, err := p.Existing()
	if err != nil {
		return err
	}
	n.unfilled += p.Bytes
	if p.Options.Unnamed {
		return nil // it is not in a tmpfs that has a size
	}
	if there.Same {
		n.unfilled -= min(there.Allocated, p.Bytes)
		return nil
	}
	if n.tmpfs == nil {
		n.tmpfs = map[uint64]*tmpfs{}
	}
	t := n.tmpfs[room.Device]
	if t == nil {
		t = &tmpfs{space: room.Tmpfs}
		n.tmpfs[room.Device] = t
	}
	t.add(p.Options.Name, p.Bytes)
	t.freed += there.Promised
	if there.Alone {
		t.freed += there.Allocated
		n.freed += there.Allocated
	}
	return nil
}
