package served

import (
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// Clean reclaims the claims of dead clients, gives up reads that take too long, tells the log what fails, looks how far
// epochs are, and says whether the cache was unused for RemoveUnused.
func (h *Cache) Clean() (unused bool) {
	if !h.Enter() {
		return false
	}
	defer h.Leave()
	h.track.Look(h.segment)
	n, err := h.cache.Recover()
	if err != nil {
		h.Log.Error("reclaiming the claims of dead clients", "error", err)
	}
	if n > 0 {
		h.Log.Info("reclaimed the claims of dead clients", "samples", n)
	}
	if n := h.filler.GiveUp(h.options.ReadTimeout); n > 0 {
		h.failures.GivenUp(n, fmt.Sprintf("reads took more than %v (read_timeout) and were given up; %d have not returned yet",
			h.options.ReadTimeout, h.filler.Stuck()))
	}
	if !h.lost && h.lostFile() {
		h.lost = true
		h.Log.Error("another program removed the file of the cache; restart the server, which makes an empty one", "segment", h.segment.Path())
	}
	h.lookForMemory()
	h.failures.Tell()
	if h.programs != nil {
		if n := h.programs.Expire(); n > 0 {
			h.Log.Warn("programs took too long for their loads; others may load these samples", "loads", n,
				"read_timeout", h.options.ReadTimeout)
		}
	}
	if h.options.RemoveUnused == 0 {
		h.idle = idleness{}
		return false
	}
	unusedFor, err := h.idle.measure(h)
	if err != nil {
		h.Log.Error("checking whether the cache has clients", "error", err)
		return false
	}
	return unusedFor >= h.options.RemoveUnused
}

// HoldsSamples says whether the segment has memory that a removal frees.
func (h *Cache) HoldsSamples() bool {
	if !h.Enter() {
		return false
	}
	defer h.Leave()
	allocated, err := h.segment.AllocatedBytes()
	return err == nil && allocated > h.segment.PayloadOffset
}

// idleness says since when only the server has used a cache.
type idleness struct {
	since         time.Time // when the janitor first found it unused; zero: it is in use
	registrations uint64    // sum over all client records: a client may come and go between two calls
}

// measure returns for how long the cache was unused. Read-only clients hold no lock, so they do not
// count.
func (i *idleness) measure(h *Cache) (time.Duration, error) {
	probe, err := h.segment.ProbeLocks()
	if err != nil {
		return 0, err
	}
	registrations := uint64(0)
	for r := range h.segment.RecordsUsed() {
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

// LeaveUnused removes a cache that no other process uses, and keeps its source open. false: the
// cache is in use, and stays. true: the cache is shut, even with an error.
func (h *Cache) LeaveUnused() (bool, error) {
	h.use.Lock()
	defer h.use.Unlock()
	if h.gone || h.connected.Load() > 0 {
		return false, nil
	}
	// The lock is exclusive, so that no client attaches during the removal. A client that has found the name
	// waits for this lock, and then finds the segment removed.
	if last, err := h.locks.LastUser(); !last || err != nil {
		return false, err
	}
	err := h.Unlink()
	fault.At("change.left")
	h.Schedules.Cancel() // they wait for h.use, and then find the cache shut
	h.filler.Close(0)
	h.gone = true
	h.closeTiers(h.tiers)
	return true, errors.Join(err, h.cache.Close(), h.segment.Close())
}
