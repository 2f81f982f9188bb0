package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
)

// ErrPartly is the error of a reload that failed for some caches and succeeded for the rest.
var ErrPartly = errors.New("applied except for some caches")

// Changes are the names of the caches that a reload has changed, and of those that it could not.
type Changes struct {
	Added   []string `json:"added"`
	Changed []string `json:"changed"` // other settings, or replaced by an empty cache
	Removed []string `json:"removed"` // with their segments
	Failed  []string `json:"failed"`
}

// reload is what a new configuration changes.
type reload struct {
	named    map[string]bool // the caches of the configuration
	leftOut  []error         // why caches that were left out still are
	failed   []string        // their names
	adjusted []CacheOptions  // caches whose data and size stay, with settings that can change
	coming   []*served.Prepared
}

// Reload takes Caches and Total of a new configuration; other settings need a new server. It removes the caches that the
// configuration no longer names, with their segments. It adds new ones, and replaces those that differ or whose source
// has changed. Reload changes nothing if the caches do not fit together, or if a source does not open whose cache was not
// left out before. Errors: those of New; ErrPartly with the errors of the caches that failed, when all other changes were
// made.
func (s *Server) Reload(ctx context.Context, o Options) (did Changes, err error) {
	p, err := s.intend(ctx, &o)
	if err != nil {
		return did, err
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	removed, err := s.review(p, o.Total)
	if err != nil {
		served.CloseAll(s.log, p.coming...)
		return did, err
	}
	s.total = o.Total
	s.sessions.Replies.Resize(o.clientShare())
	s.sessions.Requests.Resize(o.clientShare())
	s.drained()
	s.keepLeftOut(p.named)
	errs := p.leftOut
	did.Failed = p.failed
	for _, name := range removed {
		errs = append(errs, s.remove(name))
	}
	did.Removed = removed
	for _, c := range p.adjusted {
		if h := s.cache(c.Name); h.Adjust(c) {
			did.Changed = append(did.Changed, c.Name)
		}
	}
	others := new(shm.Others)
	for _, p := range p.coming {
		if err := s.arrive(p, others, &did); err != nil {
			errs = append(errs, err)
			served.CloseAll(s.log, p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return did, fmt.Errorf("%w: %w", ErrPartly, err)
	}
	return did, nil
}

// arrive serves a prepared cache of a new configuration, in the place of an old one if there is one. The caller holds
// changes.
func (s *Server) arrive(p *served.Prepared, others *shm.Others, did *Changes) (err error) {
	name, list := p.Options.Name, &did.Added
	if h := s.cache(name); h != nil {
		list = &did.Changed
		err = s.exchange(h, p, others)
	} else if err = s.begin(p, others); err != nil {
		s.leaveOut(name, err)
	}
	if err != nil {
		list = &did.Failed
	}
	*list = append(*list, name)
	return err
}

// intend compares a configuration with the present caches, and opens the sources of new ones.
func (s *Server) intend(ctx context.Context, o *Options) (p *reload, err error) {
	p = &reload{named: map[string]bool{}}
	defer func() {
		if err != nil {
			served.CloseAll(s.log, p.coming...)
		}
	}()
	for _, c := range o.Caches {
		if err := c.Check(); err != nil {
			return p, err
		}
		if p.named[c.Name] {
			return p, fmt.Errorf("%w: two caches are named %s", shm.ErrInvalid, c.Name)
		}
		p.named[c.Name] = true
		if s.inForce(&c) {
			p.adjusted = append(p.adjusted, c)
			continue
		}
		one, err := s.open(ctx, c)
		if err != nil && mayLeaveOut(ctx, err) && s.whyLeftOut(c.Name) != nil {
			s.leaveOut(c.Name, err)
			p.leftOut, p.failed = append(p.leftOut, err), append(p.failed, c.Name)
			continue
		}
		if err != nil {
			return p, err
		}
		p.coming = append(p.coming, one)
	}
	return p, nil
}

// inForce says whether the server has this cache with the same samples and size, and its source has not changed.
func (s *Server) inForce(c *CacheOptions) bool {
	h := s.enter(c.Name)
	if h == nil {
		return false
	}
	defer h.Leave()
	return h.SameData(*c)
}

// review lists the caches that the configuration no longer names, and checks the capacity for the
// rest. The caller holds changes.
func (s *Server) review(p *reload, total uint64) (removed []string, err error) {
	for _, c := range p.adjusted {
		if !s.inForce(&c) {
			return nil, fmt.Errorf("another reload changed cache %s, or its source changed, at the same time; reload again", c.Name)
		}
	}
	staying := slices.DeleteFunc(s.served(), func(h *served.Cache) bool {
		goes := !p.named[h.Name]
		if goes {
			removed = append(removed, h.Name)
		}
		return goes || slices.ContainsFunc(p.coming, func(p *served.Prepared) bool { return p.Options.Name == h.Name })
	})
	return removed, checkCapacity(total, staying, p.coming)
}
