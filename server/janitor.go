package server

import (
	"time"

	"github.com/stocached/stocached/shm"
)

// janitorPause is how often slots that dead clients left claimed are looked for. Whoever wants such a sample takes it back at once; this is for samples that nobody wants.
// It also is how exactly read_timeout and remove_unused are kept.
var janitorPause = time.Second

// clean looks after all caches, until stop is closed.
func (s *Server) clean(stop <-chan struct{}) {
	tick := time.NewTicker(janitorPause)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, h := range s.hosted() {
			if h.clean() {
				s.empty(h)
			}
		}
	}
}

// clean takes back what dead clients left claimed, gives up reads that take too long, and says whether nobody has used the cache for as long as it may be.
func (h *hosted) clean() (unused bool) {
	if !h.enter() {
		return false
	}
	defer h.leave()
	n, err := h.cache.Recover()
	if err != nil {
		h.log.Error("looking for what dead clients left claimed", "error", err)
	}
	if n > 0 {
		h.log.Info("took back what dead clients had left claimed", "samples", n)
	}
	if n := h.filler.GiveUp(h.options.ReadTimeout); n > 0 {
		h.log.Error("reads took too long and were given up", "reads", n, "read_timeout", h.options.ReadTimeout, "not_returned_yet", h.filler.Stuck())
	}
	if h.options.RemoveUnused == 0 {
		h.idle = idleness{}
		return false
	}
	unusedFor, err := h.idle.look(h)
	if err != nil {
		h.log.Error("looking whether anybody uses the cache", "error", err)
		return false
	}
	if unusedFor < h.options.RemoveUnused {
		return false
	}
	allocated, err := h.segment.Allocated()
	return err == nil && allocated > h.segment.PayloadOffset // there is something to give back
}

// idleness is since when nobody has used a cache but its server, as far as was seen: since is the first look that found nobody; zero: the last one found somebody.
type idleness struct {
	since         time.Time
	registrations uint64 // of all client records: somebody may come and go between two looks
}

// look returns for how long nobody has. Clients that only read hold no lock, and are not seen.
func (i *idleness) look(h *hosted) (time.Duration, error) {
	probe, err := h.segment.ProbeLocks()
	if err != nil {
		return 0, err
	}
	registrations := uint64(0)
	for r := range min(uint32(h.segment.ClientsHigh().Load()), h.segment.ClientRecords) {
		registrations += h.segment.ClientWord(r, shm.ClientRegistrations).Load()
	}
	now := time.Now()
	switch {
	case len(probe.Records) > 1 || h.connected.Load() > 0:
		i.since, i.registrations = time.Time{}, registrations
		return 0, nil
	case registrations != i.registrations || i.since.IsZero():
		i.since, i.registrations = now, registrations
	}
	return now.Sub(i.since), nil
}
