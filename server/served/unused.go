package served

import (
	"errors"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// Clean takes back what dead clients left claimed, gives up reads that take too long, and says
// whether the cache was unused for RemoveUnused.
func (h *Cache) Clean() (unused bool) {
	if !h.Enter() {
		return false
	}
	defer h.Leave()
	n, err := h.cache.Recover()
	if err != nil {
		h.Log.Error("looking for what dead clients left claimed", "error", err)
	}
	if n > 0 {
		h.Log.Info("took back what dead clients had left claimed", "samples", n)
	}
	if n := h.filler.GiveUp(h.options.ReadTimeout); n > 0 {
		h.Log.Error("reads took too long and were given up", "reads", n, "read_timeout", h.options.ReadTimeout,
			"not_returned_yet", h.filler.Stuck())
	}
	if h.options.RemoveUnused == 0 {
		h.idle = idleness{}
		return false
	}
	unusedFor, err := h.idle.measure(h)
	if err != nil {
		h.Log.Error("looking whether anybody uses the cache", "error", err)
		return false
	}
	if unusedFor < h.options.RemoveUnused {
		return false
	}
	allocated, err := h.segment.Allocated()
	return err == nil && allocated > h.segment.PayloadOffset // there is something to give back
}

// idleness says since when no process but the server has used a cache.
type idleness struct {
	since         time.Time // when it was first found unused; zero: it is in use
	registrations uint64    // of all client records: a client may come and go between two calls
}

// measure returns for how long the cache was unused. Read-only clients hold no lock, and are not
// seen.
func (i *idleness) measure(h *Cache) (time.Duration, error) {
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

// LeaveUnused removes a cache that no other process uses, and keeps its source. false: it is in
// use, and nothing was done. true: it is shut, even with an error.
func (h *Cache) LeaveUnused() (bool, error) {
	h.use.Lock()
	defer h.use.Unlock()
	if h.gone || h.connected.Load() > 0 {
		return false, nil
	}
	// The lock is exclusive, so that no client attaches meanwhile: one that finds the name waits
	// for us, and then finds the segment gone.
	if last, err := h.locks.LastUser(); !last || err != nil {
		return false, err
	}
	err := h.Unlink()
	fault.At("change.left")
	h.Schedules.Cancel() // they wait for us, and find it gone
	h.filler.Close(0)
	h.gone = true
	return true, errors.Join(err, h.cache.Close(), h.segment.Close())
}
