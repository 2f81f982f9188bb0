package server

import (
	"time"
)

// janitorPause is how often the janitor takes back slots that dead clients left claimed. A client
// that wants such a sample takes it back at once; the janitor frees all others. It also is how
// exactly read_timeout and remove_unused are kept.
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
