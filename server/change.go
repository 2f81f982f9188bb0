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

// removalWait is how long reads under way have when their cache is removed: none, their clients are
// told that it closes.
const removalWait = 0

// Add serves one more cache, as New does. ErrHasCache, ErrMemory when it does not fit beside the
// others, ErrEnding; errors of New.
func (s *Server) Add(ctx context.Context, o CacheOptions) error {
	if err := s.hasNot(o.Name); err != nil {
		return err // before a source is opened for nothing
	}
	p, err := served.Prepare(ctx, o, s.open)
	if err != nil {
		return err
	}
	s.changes.Lock() // a source that hangs while it is opened holds up no other change
	defer s.changes.Unlock()
	if err = s.hasNot(o.Name); err == nil {
		err = checkCapacity(s.total, s.served(), []*served.Prepared{p})
	}
	if err == nil {
		err = s.begin(p)
	}
	if err != nil {
		served.CloseAll([]*served.Prepared{p}, s.log)
	}
	return err
}

// hasNot is ErrHasCache when there is a cache of a name.
func (s *Server) hasNot(name string) error {
	if s.cache(name) != nil {
		return fmt.Errorf("%w: %s; replace it (PUT), or remove it first (DELETE)", ErrHasCache, name)
	}
	return nil
}

// begin serves a prepared cache. On failure its source stays the caller's. With changes held.
func (s *Server) begin(p *served.Prepared) error {
	if s.ending() {
		return ErrEnding // before a segment is removed for nothing
	}
	h, err := p.Serve(s.log)
	if err != nil {
		return err
	}
	if !s.put(h) {
		return errors.Join(ErrEnding, h.Shut(removalWait, true))
	}
	return nil
}

// put makes a cache the one of its name. false: the server is ending, and has not taken it.
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

// Remove ends a cache. Clients that wait for its samples are told that it closes; clients that are
// attached keep it, without a server. The segment stays, warm, for the next server of it. With
// unlink the segment is removed, and its memory is freed when its last client is gone. ErrNoCache,
// ErrEnding.
func (s *Server) Remove(name string, unlink bool) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	return s.remove(name, unlink)
}

// remove is Remove with changes held.
func (s *Server) remove(name string, unlink bool) error {
	s.mu.Lock()
	h := s.caches[name]
	if h == nil || s.closed {
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return ErrEnding
		}
		return fmt.Errorf("%w: %s; it has: %s", ErrNoCache, name, s.names())
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
	return errors.Join(err, h.Shut(removalWait, false))
}

// Replace gives a cache other options, and opens its source again. If the samples and the size of
// the segment stay the same, so does the segment, and no client notices. Otherwise a cold cache
// takes its place: clients that wait for samples are told that the old one closes, and clients that
// are attached keep it. If the new one fails, the old one goes on. ErrNoCache, ErrMemory,
// ErrEnding; errors of New.
func (s *Server) Replace(ctx context.Context, o CacheOptions) error {
	if _, err := s.has(o.Name); err != nil {
		return err
	}
	p, err := served.Prepare(ctx, o, s.open)
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
		err = s.exchange(h, p)
	}
	if err != nil {
		served.CloseAll([]*served.Prepared{p}, s.log)
	}
	return err
}

// has returns a cache. ErrNoCache.
func (s *Server) has(name string) (*served.Cache, error) {
	if h := s.cache(name); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w: %s; it has: %s. POST makes one", ErrNoCache, name, s.names())
}

// without returns the caches but one.
func without(all []*served.Cache, one *served.Cache) []*served.Cache {
	return slices.DeleteFunc(all, func(h *served.Cache) bool { return h == one })
}

// exchange replaces a served cache by a prepared one. On failure the old one comes back, and the
// source of the new one stays the caller's. With changes held.
func (s *Server) exchange(h *served.Cache, p *served.Prepared) error {
	elsewhere := h.Options().Path() != p.Options.Path()
	if h.Fits(p) {
		if err := h.Refill(p); err != nil {
			return err
		}
		h.Log.Info("reads from its source anew; the segment stays")
		return nil
	}
	path := h.Segment().Path()
	p.Succeed(h)
	// The old one ends before the new one is made: both together may be more than there is room
	// for.
	if err := h.Shut(removalWait, true); err != nil {
		h.Log.Warn("closing the cache that is replaced", "error", err)
	}
	fault.At("change.shut")
	if err := s.begin(p); err != nil {
		return errors.Join(err, s.bringBack(h))
	}
	h.CloseSource()
	if elsewhere && path != "" {
		if err := shm.Unlink(path); err != nil && !errors.Is(err, shm.ErrNotFound) {
			h.Log.Warn("the old segment stays", "error", err)
		}
	}
	h.Log.Info("replaced; who is attached to the old one keeps it")
	return nil
}

// bringBack serves a cache again that was shut with its source kept. On failure this server does
// not have it any more. With changes held.
func (s *Server) bringBack(h *served.Cache) error {
	err := s.begin(h.Again())
	if err == nil {
		return nil
	}
	s.mu.Lock()
	delete(s.caches, h.Name)
	s.mu.Unlock()
	delete(s.fromFile, h.Name)
	h.CloseSource()
	err = fmt.Errorf("this server has cache %s no more: %w", h.Name, err)
	if !errors.Is(err, ErrEnding) {
		s.leaveOut(h.Name, err)
	}
	return err
}

// empty replaces an unused cache by a cold one of the same source, which frees its memory. It does
// nothing when the cache is in use by now, or another change is under way.
func (s *Server) empty(h *served.Cache) {
	if !s.changes.TryLock() {
		return // the janitor comes again
	}
	defer s.changes.Unlock()
	if s.cache(h.Name) != h {
		return
	}
	left, err := h.LeaveUnused()
	if err != nil {
		h.Log.Error("removing a cache that nobody uses", "error", err)
	}
	if left && s.bringBack(h) == nil && err == nil {
		h.Log.Info("emptied, as nobody has used it; its memory is free", "for", h.Options().RemoveUnused)
	}
}
