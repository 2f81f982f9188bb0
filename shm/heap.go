package shm

import (
	"crypto/rand"
	"time"
)

// NewHeap makes a segment in ordinary memory, for the race detector and the fuzzers, which do not
// see mapped memory. Words and results are the same. Locks are simulated inside the Segment: each
// NewLocks is its own owner. NewHeap ignores Name, Dir, Reserve and UnlinkLast, and does not check
// the machine's memory.
func NewHeap(o Options) (*Segment, error) {
	o.Name, o.Dir, o.Reserve, o.UnlinkLast = "", "", false, false
	h, g, err := o.Plan()
	if err != nil {
		return nil, err
	}
	h.Stamp()
	s := NewControl("", h, g, nil)
	s.payload = make([]byte, g.PayloadBytes)
	return s, nil
}

// Stamp gives a header its unique number and its time.
func (h *Header) Stamp() {
	rand.Read(h.UUID[:]) // never fails
	h.Created = time.Unix(0, time.Now().UnixNano())
}
