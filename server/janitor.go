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
			if h.Clean() {
				s.empty(h)
			}
		}
	}
}
