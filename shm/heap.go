package shm

import (
	"crypto/rand"
	"time"
)

// NewHeap makes a segment in ordinary memory, for the race detector and the fuzzers, which see nothing of mapped memory. Same words, same
// results; locks are simulated inside the Segment (each NewLocks is an owner of its own), Name, Dir, Reserve and UnlinkLast are ignored, and nothing is
// checked against the machine's memory.
func NewHeap(o Options) (*Segment, error) {
	o.Name, o.Dir, o.Reserve, o.UnlinkLast = "", "", false, false
	h, g, err := o.plan()
	if err != nil {
		return nil, err
	}
	h.stamp()
	s := &Segment{Header: h, heap: newHeapLocks()}
	s.Geometry = g
	s.control = make([]byte, g.PayloadOffset) // over 32 KiB: page-aligned
	s.payload = make([]byte, g.PayloadBytes)
	copy(s.control, h.encode(&g))
	return s, nil
}

// stamp makes a header one of a kind.
func (h *Header) stamp() {
	rand.Read(h.UUID[:]) // never fails
	h.Created = time.Unix(0, time.Now().UnixNano())
}
