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

// WithSource makes a server open its sources by another function.
func WithSource(o Options, open func(ctx context.Context, s source.Settings) (source.Source, error)) Options {
	o.open = open
	return o
}

// SetTimeouts changes how long a frame may take, and a client may stall, until the test ends.
func SetTimeouts(t *testing.T, frame, stall time.Duration) {
	oldFrame, oldStall := session.FrameTimeout, session.StallTimeout
	session.FrameTimeout, session.StallTimeout = frame, stall
	t.Cleanup(func() { session.FrameTimeout, session.StallTimeout = oldFrame, oldStall })
}

// Waiting returns the most bytes of samples that wait to be written to any one client.
func (s *Server) Waiting() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.connections {
		most = max(most, c.Waiting())
	}
	return most
}

// Connections returns how many clients there are.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connections)
}

// MetricsAddress is where metrics are answered on TCP.
func (s *Server) MetricsAddress() net.Addr { return s.metricsAddress }

// SetDrainTimeout changes how long a server's end waits for its clients, until the test ends.
func SetDrainTimeout(t *testing.T, d time.Duration) {
	old := served.DrainTimeout
	served.DrainTimeout = d
	t.Cleanup(func() { served.DrainTimeout = old })
}

// SetJanitorPause changes how often a server looks after its caches, and so how exactly it keeps
// read_timeout and remove_unused, until the test ends.
func SetJanitorPause(t *testing.T, d time.Duration) {
	old := janitorPause
	janitorPause = d
	t.Cleanup(func() { janitorPause = old })
}

// Waiters returns how many waiters of a cache are in queues.
func (s *Server) Waiters(name string) int {
	return s.cache(name).Filler().Waiters()
}

// Readers returns how many goroutines there are to read for a cache.
func (s *Server) Readers(name string) int {
	return s.cache(name).Filler().Readers()
}

// Ending says whether the server has begun to end.
func (s *Server) Ending() bool { return s.ending() }

// Queued returns how many samples of a cache are wanted and not being read.
func (s *Server) Queued(name string) int { return s.cache(name).Filler().Queued() }

// SetPlanIdle changes how long a plan lives that nobody follows, until the test ends.
func SetPlanIdle(t *testing.T, d time.Duration) {
	old := prefetch.Idle
	prefetch.Idle = d
	t.Cleanup(func() { prefetch.Idle = old })
}
