package server

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/stocached/stocached/server/admin"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/source/wrap"
)

// ofPrograms is who fails, in the log and in metrics, when a part of an object fails. No cache has such a name.
const ofPrograms = "files of programs"

// opening is a cache whose source opens, or did not open a moment ago.
type opening struct {
	name  string
	ended bool
}

// open opens the source of a cache. Operators see the tries that fail, which take half a minute.
func (s *Server) open(ctx context.Context, o CacheOptions) (*served.Prepared, error) {
	f := wrap.NewFailures(s.log.With("cache", o.Name))
	s.mu.Lock()
	s.opening[f] = &opening{name: o.Name}
	s.mu.Unlock()
	p, err := served.Prepare(ctx, o, s.opener, f)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening[f].ended = true
	// They are now those of the cache, or the server says why it has none. A server on demand tells only the program.
	if err == nil || s.onDemand == nil || len(f.Now()) == 0 {
		delete(s.opening, f)
	}
	return p, err
}

// tellOpening writes the lines of the log that are due, and forgets what is over.
func (s *Server) tellOpening() {
	s.mu.Lock()
	all := maps.Clone(s.opening)
	s.mu.Unlock()
	for f, o := range all {
		f.Tell()
		s.mu.Lock()
		if o.ended && len(f.Now()) == 0 {
			delete(s.opening, f)
		}
		s.mu.Unlock()
	}
}

// Beside are the reads beside those of served caches: of caches that open, and of files of programs.
func (s *Server) Beside() (all []admin.Beside) {
	s.mu.Lock()
	for f, o := range s.opening {
		all = append(all, admin.Beside{Cache: o.name, Failures: f})
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b admin.Beside) int { return cmp.Compare(a.Cache, b.Cache) })
	if d := s.onDemand; d != nil {
		all = append(all, admin.Beside{Cache: ofPrograms, Failures: d.failures, Counts: &d.counts})
	}
	return all
}
