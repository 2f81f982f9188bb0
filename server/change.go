package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
)

// Add serves one more cache, as New does. Errors: ErrHasCache, ErrEnding, ErrMemory when the cache
// does not fit beside the others; errors of New.
func (s *Server) Add(ctx context.Context, o CacheOptions) error {
	if err := s.hasNot(o.Name); err != nil {
		return err // before it opens a source in vain
	}
	p, err := served.Prepare(ctx, o, s.open, s.log)
	if err != nil {
		return err
	}
	s.changes.Lock() // only now: a source that hangs in open must not block other changes
	defer s.changes.Unlock()
	if err = s.hasNot(o.Name); err == nil {
		err = checkCapacity(s.total, s.served(), []*served.Prepared{p})
	}
	if err == nil {
		err = s.begin(p, nil)
	}
	if err != nil {
		served.CloseAll(s.log, p)
	}
	return err
}

// hasNot returns ErrHasCache if there is a cache of that name.
func (s *Server) hasNot(name string) error {
	if s.cache(name) != nil {
		return fmt.Errorf("%w: %s; replace it (PUT), or remove it first (DELETE)", ErrHasCache, name)
	}
	return nil
}

// begin serves a prepared cache. After an error the caller still owns its source. The caller holds
// changes.
func (s *Server) begin(p *served.Prepared, others *shm.Others) error {
	if s.ending() {
		return ErrEnding // before it removes a segment in vain
	}
	h, err := p.Serve(s.log, others)
	if err != nil {
		return err
	}
	if !s.put(h) {
		return errors.Join(ErrEnding, h.Shut(true))
	}
	return nil
}

// put registers a cache under its name. It returns false, and does not register it, if the server
// is ending.
func (s *Server) put(h *served.Cache) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.caches[h.Name] = h
	delete(s.leftOut, h.Name)
	return true
}

// Remove ends a cache. Clients that wait for its samples get the answer that it closes. Attached
// clients keep it, without a server. The segment stays, warm, for the next server. With unlink the
// segment is removed, and its memory is free when its last client has ended. Errors: ErrNoCache,
// ErrEnding.
func (s *Server) Remove(name string, unlink bool) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	return s.remove(name, unlink)
}

// remove is Remove. The caller holds changes.
func (s *Server) remove(name string, unlink bool) error {
	s.mu.Lock()
	h := s.caches[name]
	if h == nil || s.closed {
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return ErrEnding
		}
		return s.noCache(name)
	}
	delete(s.caches, name)
	s.mu.Unlock()
	delete(s.fromFile, name)
	var err error
	if unlink {
		err = h.Unlink()
		fault.At("change.unlinked")
	}
	h.Log.Info("removed", "unlinked", unlink)
	return errors.Join(err, h.Shut(false))
}

// Replace gives a cache other options, and opens its source again. If the samples and the size of
// the segment stay the same, the segment stays too, and no client notices. Otherwise a cold cache
// takes its place. Clients that wait for samples get the answer that the old cache closes; attached
// clients keep it. If the new one fails, the old one goes on. Errors: ErrNoCache, ErrMemory,
// ErrEnding; errors of New.
func (s *Server) Replace(ctx context.Context, o CacheOptions) error {
	if _, err := s.has(o.Name); err != nil {
		return err
	}
	p, err := served.Prepare(ctx, o, s.open, s.log)
	if err != nil {
		return err
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	h, err := s.has(o.Name)
	if err == nil {
		err = checkCapacity(s.total, without(s.served(), h), []*served.Prepared{p})
	}
	if err == nil {
		err = s.exchange(h, p, nil)
	}
	if err != nil {
		served.CloseAll(s.log, p)
	}
	return err
}

// has returns a cache. Errors: ErrNoCache.
func (s *Server) has(name string) (*served.Cache, error) {
	if h := s.cache(name); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w. POST makes one", s.noCache(name))
}

// without returns all caches but one.
func without(all []*served.Cache, one *served.Cache) []*served.Cache {
	return slices.DeleteFunc(all, func(h *served.Cache) bool { return h == one })
}

// exchange replaces a served cache by a prepared one. After an error it serves the old one again,
// and the caller still owns the source of the new one. The caller holds changes.
func (s *Server) exchange(h *served.Cache, p *served.Prepared, others *shm.Others) error {
	elsewhere := h.Options().Path() != p.Options.Path()
	if h.Fits(p) {
		if err := h.Refill(p); err != nil {
			return err
		}
		h.Log.Info("reads from its source, opened again; the segment stays")
		return nil
	}
	path := h.Segment().Path()
	p.Succeed(h)
	// The old cache ends before the new one is made: memory may be too small for both.
	if err := h.Shut(true); err != nil {
		h.Log.Warn("closing the cache that is replaced", "error", err)
	}
	fault.At("change.shut")
	if err := s.begin(p, others); err != nil {
		return errors.Join(err, s.bringBack(h))
	}
	h.CloseSource()
	if elsewhere && path != "" {
		if err := shm.Unlink(path); err != nil && !errors.Is(err, shm.ErrNotFound) {
			h.Log.Warn("the old segment stays", "error", err)
		}
	}
	h.Log.Info("replaced; attached clients keep the old one")
	return nil
}

// bringBack serves a cache again that was shut with its source open. After an error the server no
// longer has it. The caller holds changes.
func (s *Server) bringBack(h *served.Cache) error {
	err := s.begin(h.Again(), nil)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	delete(s.caches, h.Name)
	s.mu.Unlock()
	delete(s.fromFile, h.Name)
	h.CloseSource()
	err = fmt.Errorf("this server no longer has cache %s: %w", h.Name, err)
	if !errors.Is(err, ErrEnding) {
		s.leaveOut(h.Name, err)
	}
	return err
}

// empty replaces an unused cache by a cold one of the same source, to free its memory. It does
// nothing if the cache is in use again or another change is under way.
func (s *Server) empty(h *served.Cache) {
	if !s.changes.TryLock() {
		return // the janitor tries again
	}
	defer s.changes.Unlock()
	if s.cache(h.Name) != h {
		return
	}
	left, err := h.LeaveUnused()
	if err != nil {
		h.Log.Error("removing a cache without clients", "error", err)
	}
	if left && s.bringBack(h) == nil && err == nil {
		h.Log.Info("emptied, as no client used it; its memory is free", "for", h.Options().RemoveUnused)
	}
}
