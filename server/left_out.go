package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// If a source does not open or a segment is damaged, the server leaves that one cache out and
// serves all others. It reports the cache in its log, in /readyz and in its metrics. A reload tries
// the cache again.

// mayLeaveOut says whether an error concerns one cache only. An invalid configuration and a second
// server concern all caches.
func mayLeaveOut(ctx context.Context, err error) bool {
	all := []error{shm.ErrInvalid, source.ErrInvalid, ErrServed, ErrEnding}
	return ctx.Err() == nil && !slices.ContainsFunc(all, func(one error) bool { return errors.Is(err, one) })
}

// leaveOut records why the server does not have a cache of its configuration.
func (s *Server) leaveOut(name string, why error) {
	s.log.Error("a cache is left out", "cache", name, "error", why)
	s.mu.Lock()
	s.leftOut[name] = why
	s.mu.Unlock()
}

// keepLeftOut forgets caches that the configuration no longer names.
func (s *Server) keepLeftOut(named map[string]bool) {
	s.mu.Lock()
	maps.DeleteFunc(s.leftOut, func(name string, _ error) bool { return !named[name] })
	s.mu.Unlock()
}

// whyLeftOut returns why a cache is left out; nil: it is not left out.
func (s *Server) whyLeftOut(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leftOut[name]
}

// LeftOut returns a line with the reason for each cache of the configuration that is left out.
func (s *Server) LeftOut() (lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.leftOut)) {
		lines = append(lines, fmt.Sprintf("left out: %s; stocached reload tries it again", source.OneLine(s.leftOut[name].Error())))
	}
	return lines
}

// absent says why this server has no cache of that name.
func (s *Server) absent(name string) string {
	if why := s.whyLeftOut(name); why != nil {
		return fmt.Sprintf("this server has left it out: %v", why)
	}
	return fmt.Sprintf("this server has no cache %q; it has: %s", name, s.names())
}

// isLeftOut says of each cache of this server, and of each that it left out, whether it did.
func (s *Server) isLeftOut() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for name := range s.caches {
		all[name] = false
	}
	for name := range s.leftOut {
		all[name] = true
	}
	return all
}
