package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
)

// hosted is a cache of this server: its segment, the server's own client of it, and the source it is filled from.
type hosted struct {
	name    string
	segment *shm.Segment
	cache   *cache.Cache
	source  source.Source
	filler  *filler
	counts  wrap.Counts // of the source
	adopted bool        // it was there, warm

	stop    chan struct{} // closed to end the janitor
	janitor sync.WaitGroup
}

// ErrServed is the error of a second server for a cache.
var ErrServed = errors.New("another server fills this cache")

// host opens the source of a cache and makes the segment for it, or adopts the one that an earlier server left: if it has the name, the schema, the size and the
// fingerprint of the source. If it has not, it is removed (those who are attached keep it) and a cold one is made. ErrServed when another server has it.
func host(ctx context.Context, o CacheOptions, open openFunc, log *slog.Logger) (h *hosted, err error) {
	log = log.With("cache", o.Name)
	src, err := o.open(ctx, open)
	if err != nil {
		return nil, fmt.Errorf("cache %s: %w", o.Name, err)
	}
	fault.At("host.source")
	defer func() {
		if err != nil {
			src.Close()
			err = fmt.Errorf("cache %s: %w", o.Name, err)
		}
	}()
	want, err := o.segment(src)
	if err != nil {
		return nil, err
	}
	h = &hosted{name: o.Name}
	h.source = wrap.Count(src, &h.counts)
	for h.cache == nil {
		h.segment, err = shm.Open(pathOf(o), shm.OpenOptions{})
		switch {
		case err == nil:
			fault.At("host.opened")
			why := differs(h.segment, &want)
			if why == "" {
				if err := h.attach(log); err != nil {
					return nil, err
				}
				h.adopted = true
				continue
			}
			if err := h.replace(log, why); err != nil {
				return nil, err
			}
		case errors.Is(err, shm.ErrNotFound):
			h.segment, err = shm.Create(want)
			if errors.Is(err, shm.ErrExists) {
				continue // somebody made it meanwhile
			}
			if err != nil {
				return nil, err
			}
			fault.At("host.created")
			if err := h.attach(log); err != nil {
				return nil, err
			}
		default:
			return nil, err // not ours, or no segment at all: nothing is removed that we do not know
		}
	}
	h.filler = newFiller(h.cache, h.source, o.Parallel, log)
	h.stop = make(chan struct{})
	h.janitor.Go(func() { janitor(h.cache, log, h.stop) })
	filled := uint64(0)
	if h.adopted { // a pass over the whole index, which a cold cache does not need
		if stats, err := h.cache.Stats(); err == nil {
			filled = stats.Ready
		}
	}
	log.Info("serving", "warm", h.adopted, "samples", want.Samples, "filled", filled, "bytes", h.segment.SegmentBytes, "source", src.Info().Kind, "fingerprint", src.Info().Fingerprint)
	return h, nil
}

// pathOf is what a cache is opened by.
func pathOf(o CacheOptions) string {
	if o.Dir == "" {
		return o.Name
	}
	return o.Dir + "/" + o.Name
}

// attach takes the server lock of the segment and becomes its client.
func (h *hosted) attach(log *slog.Logger) error {
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
		log.Info("took back what dead clients had left claimed", "samples", n)
	}
	h.cache = c
	return nil
}

// replace removes a segment that is not the one we want, unless another server has it.
func (h *hosted) replace(log *slog.Logger, why string) error {
	probe, err := h.segment.ProbeLocks()
	if err == nil && probe.Server {
		err = fmt.Errorf("%w: %s", ErrServed, h.segment.Path())
	}
	if err == nil {
		log.Warn("the cache that is there is of other data; a cold one takes its place, and who is attached keeps the old one", "because", why)
		err = h.segment.Remove()
		fault.At("host.removed")
	}
	return errors.Join(err, h.segment.Close())
}

// differs says in which respect a segment is not what was asked for; "": in none.
func differs(have *shm.Segment, want *shm.Options) string {
	switch {
	case have.Header.Fingerprint != want.Fingerprint:
		return fmt.Sprintf("its fingerprint is %q, the source has %q", have.Header.Fingerprint, want.Fingerprint)
	case have.Samples != want.Samples:
		return fmt.Sprintf("it is of %d samples, the source has %d", have.Samples, want.Samples)
	case have.Header.Limit != want.Limit:
		return fmt.Sprintf("its size is %d bytes, the configuration says %d", have.Header.Limit, want.Limit)
	case have.Variable() != want.Variable:
		return "one of the two is of variable size"
	case !want.Variable && have.FirstCome() != (want.Assign == shm.AssignFirstCome):
		return "its slots are assigned otherwise"
	case len(have.Header.Fields) != len(want.Fields):
		return fmt.Sprintf("its samples have %d fields, those of the source %d", len(have.Header.Fields), len(want.Fields))
	}
	for k, f := range have.Header.Fields {
		if w := want.Fields[k]; f.Name != w.Name || f.DType != w.DType || fmt.Sprint(f.Dims) != fmt.Sprint(w.Dims) {
			return fmt.Sprintf("its field %d is %s of %v %v, that of the source %s of %v %v", k, f.Name, f.Dims, f.DType, w.Name, w.Dims, w.DType)
		}
	}
	return ""
}

// close lets the segment go, which stays for the next server. The filler was closed before.
func (h *hosted) close() error {
	close(h.stop)
	h.janitor.Wait()
	return errors.Join(h.cache.Close(), h.segment.Close(), h.source.Close())
}
