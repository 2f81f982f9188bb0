package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
)

// hosted is a cache of this server: its segment, the server's own client of it, and the source it is filled from.
//
// Whoever looks into it does so between enter and leave: from shut on there is nothing to look at.
type hosted struct {
	name    string
	log     *slog.Logger
	want    shm.Options // what the segment was made of
	bytes   uint64      // of the segment
	segment *shm.Segment
	locks   shm.Locks // of cache, which closes them
	cache   *cache.Cache
	filler  *fill.Filler
	tally   *tally
	adopted bool // it was there, warm

	plans plans

	connected atomic.Int64 // connections that have attached to it
	fromFile  bool         // the configuration has it, so that a reload without it removes it. Protected by the server's changes

	use     sync.RWMutex // protects what follows: held for reading by who looks, for writing by who changes
	gone    bool
	options CacheOptions
	bare    source.Source // as it was opened
	source  source.Source // and counted
	ahead   wrap.Ahead    // within it; nil: it does not read ahead

	idle idleness // the janitor's
}

// ErrServed is the error of a second server for a cache.
var ErrServed = errors.New("another server fills this cache")

// host makes the segment for a prepared cache, or adopts the one that an earlier server left: if it has the name, the schema, the size and the
// fingerprint of the source. If it has not, it is removed (those who are attached keep it) and a cold one is made. The source is the hosted cache's from here on; on failure it
// stays the caller's. ErrServed when another server has it; errors of package shm, with the cache's name.
func (p *prepared) host(log *slog.Logger) (h *hosted, err error) {
	log = log.With("cache", p.options.Name)
	defer func() {
		if err != nil {
			h, err = nil, fmt.Errorf("cache %s: %w", p.options.Name, err)
		}
	}()
	h = &hosted{name: p.options.Name, log: log, want: p.want, bytes: p.bytes, options: p.options, tally: cmp.Or(p.tally, new(tally))}
	for h.cache == nil {
		h.segment, err = p.find()
		switch {
		case err == nil:
			fault.At("host.opened")
			why := differs(&h.segment.Header, &h.segment.Geometry, &p.want)
			if why == "" {
				err := h.attach()
				if errors.Is(err, shm.ErrNotFound) {
					continue // its last user was just leaving, and has taken it along
				}
				if err != nil {
					return nil, err
				}
				h.adopted = true
				continue
			}
			if err := h.replace(why); err != nil {
				return nil, err
			}
		case errors.Is(err, shm.ErrNotFound):
			h.segment, err = shm.Create(p.want)
			if errors.Is(err, shm.ErrExists) {
				continue // somebody made it meanwhile
			}
			if err != nil {
				return nil, err
			}
			fault.At("host.created")
			if err := h.attach(); err != nil {
				return nil, err
			}
		default:
			return nil, err // not ours, or no segment at all: nothing is removed that we do not know
		}
	}
	h.bare, h.source, h.ahead = p.source, wrap.Count(p.source, &h.tally.source), p.ahead
	h.filler = fill.New(h.cache, h.source, p.options.Parallel, &h.tally.fill, log)
	filled := uint64(0)
	if h.adopted { // a pass over the whole index, which a cold cache does not need
		if stats, err := h.cache.Stats(); err == nil {
			filled = stats.Ready
		}
	}
	info := p.source.Info()
	log.Info("serving", "warm", h.adopted, "samples", p.want.Samples, "filled", filled, "bytes", h.segment.SegmentBytes, "source", info.Kind, "fingerprint", info.Fingerprint)
	return h, nil
}

// pathOf is what a cache is opened by; "" without a name.
func pathOf(o CacheOptions) string {
	switch {
	case o.Unnamed:
		return ""
	case o.Dir == "":
		return o.Name
	}
	return o.Dir + "/" + o.Name
}

// find attaches to the segment that an earlier server has left. ErrNotFound, and it always is without a name.
func (p *prepared) find() (*shm.Segment, error) {
	if p.options.Unnamed {
		return nil, shm.ErrNotFound
	}
	return shm.Open(pathOf(p.options), shm.OpenOptions{})
}

// attach takes the server lock of the segment and becomes its client.
func (h *hosted) attach() error {
	locks, err := h.segment.NewLocks()
	if err != nil {
		return errors.Join(err, h.segment.Close())
	}
	ok, err := locks.TryServer()
	if err == nil && !ok {
		err = fmt.Errorf("%w: %s; end that server first, or give one of the two another name", ErrServed, h.segment.Path())
	}
	if err != nil {
		return errors.Join(err, locks.Close(), h.segment.Close())
	}
	fault.At("host.locked")
	c, err := cache.Attach(h.segment, cache.Options{Label: "stocached serve", Kind: shm.KindServer, Locks: locks})
	if err != nil {
		return errors.Join(err, h.segment.Close())
	}
	fault.At("host.attached")
	if n, err := c.Recover(); err == nil && n > 0 {
		h.log.Info("took back what dead clients had left claimed", "samples", n)
	}
	h.cache, h.locks = c, locks
	return nil
}

// replace removes a segment that is not the one we want, unless another server has it.
func (h *hosted) replace(why string) error {
	probe, err := h.segment.ProbeLocks()
	if err == nil && probe.Server {
		err = fmt.Errorf("%w: %s", ErrServed, h.segment.Path())
	}
	if err == nil {
		h.log.Warn("the cache that is there is of other data; a cold one takes its place, and who is attached keeps the old one", "because", why)
		err = h.segment.Remove()
		fault.At("host.removed")
	}
	return errors.Join(err, h.segment.Close())
}

// differs says in which respect a segment is not what was asked for; "": in none.
func differs(header *shm.Header, have *shm.Geometry, want *shm.Options) string {
	switch {
	case header.Fingerprint != want.Fingerprint:
		return fmt.Sprintf("its fingerprint is %q, the source has %q", header.Fingerprint, want.Fingerprint)
	case have.Samples != want.Samples:
		return fmt.Sprintf("it is of %d samples, the source has %d", have.Samples, want.Samples)
	case header.Limit != want.Limit:
		return fmt.Sprintf("its size is %d bytes, the configuration says %d", header.Limit, want.Limit)
	case have.Variable() != want.Variable:
		return "one of the two is of variable size"
	case !want.Variable && have.FirstCome() != (want.Assign == shm.AssignFirstCome):
		return "its slots are assigned otherwise"
	case len(header.Fields) != len(want.Fields):
		return fmt.Sprintf("its samples have %d fields, those of the source %d", len(header.Fields), len(want.Fields))
	}
	for k, f := range header.Fields {
		if w := want.Fields[k]; f.Name != w.Name || f.DType != w.DType || fmt.Sprint(f.Dims) != fmt.Sprint(w.Dims) {
			return fmt.Sprintf("its field %d is %s of %v %v, that of the source %s of %v %v", k, f.Name, f.Dims, f.DType, w.Name, w.Dims, w.DType)
		}
	}
	return ""
}

// enter begins to look into the cache. false: it was shut, and there is nothing to leave.
func (h *hosted) enter() bool {
	h.use.RLock()
	if h.gone {
		h.use.RUnlock()
		return false
	}
	return true
}

func (h *hosted) leave() { h.use.RUnlock() }

// adjust takes on options that change no sample and no segment.
func (h *hosted) adjust(o CacheOptions) {
	h.use.Lock()
	h.options = o
	h.use.Unlock()
	h.filler.Resize(o.Parallel)
}

// refill takes on another source of the very same data. Reads under way end with the old one. ErrEnding: the cache was shut, and has not taken it.
func (h *hosted) refill(p *prepared) error {
	h.use.Lock()
	if h.gone {
		h.use.Unlock()
		return ErrEnding
	}
	h.bare, h.source, h.ahead = p.source, wrap.Count(p.source, &h.tally.source), p.ahead
	h.options = p.options
	before := h.filler.SetSource(h.source)
	h.use.Unlock()
	h.filler.Resize(p.options.Parallel)
	h.closeLater(before)
	return nil
}

// announce tells a source that reads ahead what was prefetched, so that it has it when a reader gets to it. The caller has entered.
func (h *hosted) announce(indices []int64) {
	if h.ahead == nil {
		return
	}
	missing := make([]int, 0, len(indices))
	for _, i := range indices {
		if state, err := h.cache.State(int(i)); err == nil && state != cache.StateReady {
			missing = append(missing, int(i))
		}
	}
	h.ahead.Prefetch(missing)
}

// shut ends what the server does with the cache, and lets the segment go, which stays. Reads under way have so long; whoever waits for one that takes longer is told that the
// cache is closing. keepSource leaves the source open, for another cache.
func (h *hosted) shut(wait time.Duration, keepSource bool) error {
	h.plans.close()
	stuck := h.filler.Close(wait)
	h.use.Lock()
	if h.gone {
		h.use.Unlock()
		return nil
	}
	h.gone = true
	from := h.source
	err := errors.Join(h.cache.Close(), h.segment.Close())
	h.use.Unlock()
	if keepSource {
		return err
	}
	closed := h.closeLater(from)
	if stuck > 0 {
		return err
	}
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C: // one of the source's own reads hangs, such as one that reads ahead
		h.log.Warn("the source does not close; nobody waits for it any more", "after", drainTimeout)
	}
	return err
}

// closeLater closes a source when the reads under way have ended, which may be never: then closed is.
func (h *hosted) closeLater(s source.Source) (closed <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Close(); err != nil {
			h.log.Warn("closing a source", "error", err)
		}
	}()
	return done
}
