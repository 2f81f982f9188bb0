package cli

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// Facts about segments that several commands print.

// slots returns the number of slots; nil in a variable-size cache, which has none.
func slots(g *shm.Geometry) any {
	return table.If(!g.Variable(), table.Count(g.SampleSlots()))
}

// slotBytes returns the size of the slots in which samples lie; nil unless they differ in size.
func slotBytes(g *shm.Geometry) any { return ofChains(g, table.Bytes(g.SlotStride)) }

// ofChains is a value that only a variable-size cache that evicts has.
func ofChains(g *shm.Geometry, v any) any {
	return table.If(g.Chains(), v)
}

// slotsFraction returns slots / samples; nil in a variable-size cache.
func slotsFraction(g *shm.Geometry) any {
	return table.If(!g.Variable(), table.Fraction(g.Slots, g.Samples))
}

// allocated returns the bytes of a segment's pages; nil when the kernel does not say.
func allocated(s *shm.Segment) any {
	n, err := s.AllocatedBytes()
	if err != nil {
		return nil
	}
	return table.Bytes(n)
}

// unlinkOf says when a cache is removed: never (only by command) or last (by its last user).
func unlinkOf(h *shm.Header) string {
	if h.Flags&shm.FlagUnlinkLast != 0 || h.Flags&shm.FlagNamed == 0 {
		return "last"
	}
	return "never"
}

// clientKinds are the kinds of clients, by number.
var clientKinds = map[uint32]string{shm.KindGo: "go", shm.KindC: "c", shm.KindPython: "python",
	shm.KindServer: "server"}

// pidNamespace returns the inode of this process's pid namespace; 0 unknown.
var pidNamespace = sync.OnceValue(func() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return st.Ino
})
