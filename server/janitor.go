package server

import (
	"time"
)

// janitorPause is how often the janitor reclaims the slots of dead clients. A client that needs
// such a sample reclaims it at once; the janitor frees the others. The pause is also the precision
// of read_timeout and remove_unused.
var janitorPause = time.Second

// clean cleans up all caches until stop is closed.
func (s *Server) clean(stop <-chan struct{}) {
	tick := time.NewTicker(janitorPause)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, h := range s.served() {
			switch unused := h.Clean(); {
			case unused && s.onDemand != nil:
				s.leave(h)
			case unused && h.HoldsSamples():
				s.empty(h)
			}
		}
		s.tellOpening()
		if s.onDemand == nil {
			continue
		}
		s.onDemand.failures.Tell()
		s.onDemand.soon.expire()
		if s.isIdle() {
			s.log.Info("ends, as no program uses it", "for", s.onDemand.Idle)
			s.onDemand.End()
		}
	}
}
