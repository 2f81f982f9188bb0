package cache

import (
	"math"
	"time"

	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Cost is what the load of a sample took, in one byte; 0: unknown or doubtful. Nanoseconds returns the time, and
// Confirmed says whether it is an average over several loads: docs/spec/policies.md, The byte.
type Cost = policy.Cost

// Costs writes the costs of the samples from first on into dst, and counts nothing. Samples that went
// keep their costs. A cost is doubtful if one load took far longer than all others: it may have been
// stopped. Errors: ErrIndex unless all of them are samples; ErrClosed.
func (c *Cache) Costs(first int, dst []Cost) error {
	l, err := c.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	if err := c.checkRange(first, len(dst)); err != nil {
		return err
	}
	spread := c.spread()
	for k := range dst {
		dst[k] = c.cost(uint64(first + k)).Believed(spread)
	}
	return nil
}

// CostStats are sums of the costs of samples, as measured.
type CostStats struct {
	Known        uint64  `json:"known"`         // samples whose load was measured, cached or not
	KnownSeconds float64 `json:"known_seconds"` // to load each of these once
	Ready        uint64  `json:"ready"`         // known samples that are READY
	SavedSeconds float64 `json:"saved_seconds"` // to load each of those once: an epoch need not spend it
	// samples that first-come would have in the bytes of Ready: as many, unless samples differ in size
	FirstCome   uint64  `json:"first_come"`
	LoadSeconds float64 `json:"load_seconds"` // time that all loads took together, since the cache was created
}

// FirstComeSeconds returns what an epoch saves if as many bytes of samples are cached, which are any and
// not the costliest, as with the policy first-come. 0: no cost is known.
func (s CostStats) FirstComeSeconds() float64 {
	if s.Known == 0 {
		return 0
	}
	return s.KnownSeconds / float64(s.Known) * float64(s.FirstCome)
}

// costSums counts samples of known cost by level, and adds up lengths.
type costSums struct {
	known, ready             [1 << 7]uint64
	sized, bytes, readyBytes uint64 // samples of known length; bytes of these, and of the cached ones of known cost
}

func (s *costSums) add(m shm.Meta, spread policy.Spread, length uint64, ready bool) {
	level := policy.Cost(m.Cost()).Believed(spread) >> 1
	s.known[level]++
	if length > 0 && (level > 0 || m.Fills() > 0) {
		s.sized++
		s.bytes += length
	}
	if ready {
		s.ready[level]++
		if level > 0 {
			s.readyBytes += length
		}
	}
}

// stats sums the levels from 1 on. Level 0 is unknown.
func (s *costSums) stats() (sums CostStats) {
	for level := 1; level < len(s.known); level++ {
		each := time.Duration(Cost(level << 1).Nanoseconds()).Seconds()
		sums.Known += s.known[level]
		sums.KnownSeconds += float64(s.known[level]) * each
		sums.Ready += s.ready[level]
		sums.SavedSeconds += float64(s.ready[level]) * each
	}
	if s.bytes > 0 {
		sums.FirstCome = uint64(math.Round(float64(s.readyBytes) / float64(s.bytes) * float64(s.sized)))
	}
	return sums
}
