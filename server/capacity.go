package server

import (
	"fmt"
	"strings"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
)

// checkCapacity checks, before it is created, whether the segment of each coming cache fits beside
// those that stay. ErrMemory has the numbers. total is the operator's bound on all segments; 0:
// none. An existing segment of the same data and size needs no more of the tmpfs. Any other
// existing segment is removed, and its pages count as free unless another process has attached it.
// Nothing is reserved: other processes may take the free memory.
func checkCapacity(total uint64, staying []*served.Cache, coming []*served.Prepared) error {
	sum, list := uint64(0), []string{}
	add := func(name string, bytes uint64) {
		sum += bytes
		list = append(list, fmt.Sprintf("%s %s", name, size.Text(bytes)))
	}
	needs := map[uint64]*need{} // of each tmpfs
	unfilled, freed := uint64(0), uint64(0)
	for _, h := range staying {
		if !h.Enter() {
			continue
		}
		add(h.Name, h.Segment().SegmentBytes)
		allocated, err := h.Segment().Allocated()
		h.Leave()
		if err != nil {
			return err
		}
		unfilled += h.Segment().SegmentBytes - min(allocated, h.Segment().SegmentBytes)
	}
	var memory shm.Space
	for _, p := range coming {
		add(p.Options.Name, p.Bytes)
		room, err := shm.RoomIn(p.Options.Dir)
		if err != nil {
			return fmt.Errorf("cache %s: %w", p.Options.Name, err)
		}
		memory = room.Memory
		n := needs[room.Device]
		if n == nil {
			n = &need{space: room.Tmpfs}
			needs[room.Device] = n
		}
		there, err := p.Existing()
		if err != nil {
			return err
		}
		unfilled += p.Bytes
		if p.Options.Unnamed {
			continue // it is not in a tmpfs that has a size
		}
		if there.Same {
			unfilled -= min(there.Allocated, p.Bytes)
			continue
		}
		n.add(p)
		n.freed += there.Promised
		if there.Alone {
			n.freed += there.Allocated
			freed += there.Allocated
		}
	}
	if total != 0 && sum > total {
		return fmt.Errorf("%w: the caches of this server are %s in all (%s), and limits.total is %s; give them "+
			"smaller sizes (size), or raise it", shm.ErrMemory, size.Text(sum),
			strings.Join(list, ", "), size.Text(total))
	}
	for _, n := range needs {
		if n.bytes > n.space.Left && n.bytes-n.space.Left > n.freed {
			return fmt.Errorf("%w: new segments of %s are needed (%s); %s; give the caches smaller sizes (size), "+
				"remove others (stocached gc, stocached rm NAME), or enlarge the tmpfs "+
				"(mount -o remount,size=...)", shm.ErrMemory, size.Text(n.bytes), strings.Join(n.list, ", "),
				n.space.Text)
		}
	}
	if len(coming) > 0 && unfilled > memory.Left && unfilled-memory.Left > freed {
		return fmt.Errorf("%w: the caches of this server may still take %s (%s in all: %s); %s; give them smaller "+
			"sizes (size), or the machine or cgroup more memory", shm.ErrMemory,
			size.Text(unfilled), size.Text(sum), strings.Join(list, ", "), memory.Text)
	}
	return nil
}

// need is the sum of the new segments in one tmpfs.
type need struct {
	space        shm.Space
	bytes, freed uint64
	list         []string
}

func (n *need) add(p *served.Prepared) {
	n.bytes += p.Bytes
	n.list = append(n.list, fmt.Sprintf("%s %s", p.Options.Name, size.Text(p.Bytes)))
}
