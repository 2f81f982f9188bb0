package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// A cache of the configuration whose source does not open, or whose segment is damaged, keeps no
// other cache from its clients: the server leaves it out and says so, in its log, in /readyz and in
// its metrics. A reload tries it again.

// mayLeaveOut says whether an error concerns one cache alone. A configuration that makes no sense,
// and a second server, concern all.
func mayLeaveOut(ctx context.Context, err error) bool {
	for _, all := range []error{shm.ErrInvalid, source.ErrInvalid, ErrServed, ErrEnding} {
		if errors.Is(err, all) {
			return false
		}
	}
	return ctx.Err() == nil
}

// leaveOut notes why the server does not have a cache of its configuration.
func (s *Server) leaveOut(name string, why error) {
	s.log.Error("a cache is left out", "cache", name, "error", why)
	s.mu.Lock()
	s.leftOut[name] = why
	s.mu.Unlock()
}

// keepLeftOut forgets caches that the configuration has no more.
func (s *Server) keepLeftOut(named map[string]bool) {
	s.mu.Lock()
	maps.DeleteFunc(s.leftOut, func(name string, _ error) bool { return !named[name] })
	s.mu.Unlock()
}

// whyLeftOut returns why a cache is left out; nil: it is not.
func (s *Server) whyLeftOut(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leftOut[name]
}

// LeftOut returns a line for each cache of the configuration that this server does not have, with
// the reason.
func (s *Server) LeftOut() (lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.leftOut)) {
		lines = append(lines, fmt.Sprintf("left out: %s", strings.ReplaceAll(s.leftOut[name].Error(), "\n", "; ")))
	}
	return lines
}

// absent says that there is no such cache, and why.
func (s *Server) absent(name string) string {
	if why := s.whyLeftOut(name); why != nil {
		return fmt.Sprintf("this server has left it out: %v", why)
	}
	return fmt.Sprintf("this server has no cache %q; it has: %s", name, s.names())
}

// inConfiguration yields the caches that this server has with 0, and those that are left out with
// 1.
func (s *Server) inConfiguration() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]float64{}
	for name := range s.caches {
		all[name] = 0
	}
	for name := range s.leftOut {
		all[name] = 1
	}
	return all
}
