package server

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/server/session"
	"github.com/stocached/stocached/source"
)

// WithSource makes a server open its sources with another function.
func WithSource(o Options, open func(ctx context.Context, s source.Settings) (source.Source, error)) Options {
	o.open = open
	return o
}

// set changes a setting of the server until the test ends.
func set[T any](t testing.TB, at *T, value T) {
	old := *at
	*at = value
	t.Cleanup(func() { *at = old })
}

// SetTimeouts changes FrameTimeout and StallTimeout until the test ends.
func SetTimeouts(t testing.TB, frame, stall time.Duration) {
	set(t, &session.FrameTimeout, frame)
	set(t, &session.StallTimeout, stall)
}

// SetLongestWait changes LongestWait until the test ends.
func SetLongestWait(t testing.TB, wait time.Duration) { set(t, &session.LongestWait, wait) }

// SetDrainTimeout changes how long the end of a server waits for its clients, until the test ends.
func SetDrainTimeout(t testing.TB, d time.Duration) { set(t, &served.DrainTimeout, d) }

// SetJanitorPause changes the pause of the janitor, and so the precision of read_timeout and
// remove_unused, until the test ends.
func SetJanitorPause(t testing.TB, d time.Duration) { set(t, &janitorPause, d) }

// SetPlanIdle changes prefetch.Idle until the test ends.
func SetPlanIdle(t testing.TB, d time.Duration) { set(t, &prefetch.Idle, d) }

// SetPartLimits changes how many bytes of parts programs get at a time, and how many storages stay open, until the test ends.
func SetPartLimits(t testing.TB, bytes int64, places int) {
	set(t, &mostPartBytes, bytes)
	set(t, &mostPlaces, places)
}

// SetPartLook changes how long a look whether an object has changed counts, until the test ends.
func SetPartLook(t testing.TB, d time.Duration) { set(t, &soonLook, d) }

// SetPartAge changes how long a part that is read ahead waits for a program, until the test ends.
func SetPartAge(t testing.TB, d time.Duration) { set(t, &soonAge, d) }

// Waiting returns the most bytes of samples that wait for one client.
func (s *Server) Waiting() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.connections {
		most = max(most, c.Waiting())
	}
	return most
}

// Connections returns the number of clients.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connections)
}

// Cache returns the cache of a name.
func (s *Server) Cache(name string) *served.Cache { return s.cache(name) }

// MetricsAddress returns the TCP address of the metrics.
func (s *Server) MetricsAddress() net.Addr { return s.metrics.Addr() }

// Waiters returns the number of waiters in the queues of a cache.
func (s *Server) Waiters(name string) int {
	return s.cache(name).Filler().Waiters()
}

// Readers returns the number of readers of a cache.
func (s *Server) Readers(name string) int {
	return s.cache(name).Filler().Readers()
}

// Ending says whether the server has begun to end.
func (s *Server) Ending() bool { return s.ending() }

// Queued returns how many samples of a cache have waiters and no read yet.
func (s *Server) Queued(name string) int { return s.cache(name).Filler().Queued() }

// Clean does what the janitor does in one round.
func (s *Server) Clean() {
	for _, h := range s.served() {
		h.Clean()
	}
}

// AskedParts returns how many parts are being read that requests wait for, beside the one that reads them.
func AskedParts(s *Server) int {
	soon, asked := s.onDemand.soon, 0
	soon.mu.Lock()
	defer soon.mu.Unlock()
	for _, p := range soon.parts {
		select {
		case <-p.asked:
			if !p.isDone() {
				asked++
			}
		default:
		}
	}
	return asked
}
