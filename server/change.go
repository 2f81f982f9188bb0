package server

import (
	"errors"
	"fmt"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
)

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

// remove ends a cache and removes its segment. Clients that wait for its samples get the answer that it closes. Attached
// clients keep it; its memory is free when the last one has ended. Errors: ErrNoCache, ErrEnding. The caller holds changes.
func (s *Server) remove(name string) error {
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
	err := h.Unlink()
	fault.At("change.unlinked")
	h.Log.Info("removed")
	return errors.Join(err, h.Shut(false))
}

// exchange replaces a served cache by a prepared one. If the samples and the size of the segment stay the same, the
// segment stays too, and no client notices. Otherwise a cold cache takes its place. Clients that wait for samples get the
// answer that the old cache closes; attached clients keep it. After an error exchange serves the old one again, and the
// caller still owns the source of the new one. The caller holds changes.
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
	s.leaveUnused(h, func() {
		if s.bringBack(h) == nil {
			h.Log.Info("emptied, as no client used it; its memory is free", "for", h.Options().RemoveUnused)
		}
	})
}

// leaveUnused ends a cache that no client uses, and then calls a function, which holds changes. It does nothing if the
// cache is in use again or another change is under way; the janitor tries again.
func (s *Server) leaveUnused(h *served.Cache, then func()) {
	if !s.changes.TryLock() {
		return
	}
	defer s.changes.Unlock()
	if s.cache(h.Name) != h {
		return
	}
	left, err := h.LeaveUnused()
	if err != nil {
		h.Log.Error("removing a cache without clients", "error", err)
	}
	if left {
		then()
	}
}
