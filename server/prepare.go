package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"
)

// prepared is a cache whose source is open, so that its size is known, and that has no segment yet.
type prepared struct {
	options CacheOptions
	source  source.Source
	ahead   wrap.Ahead // within the source; nil: it does not read ahead
	want    shm.Options
	bytes   uint64 // of its segment
	tally   *tally // of the cache whose place it takes; nil: of none
}

// prepare opens the source of a cache, and makes nothing. Errors have the cache's name.
func prepare(ctx context.Context, o CacheOptions, open openFunc) (p *prepared, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p = &prepared{options: o}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cache %s: %w", o.Name, err)
		}
	}()
	if p.source, p.ahead, err = kinds.Whole(ctx, open, o.Source, o.Decode); err != nil {
		return nil, err
	}
	fault.At("host.source")
	if p.want, err = o.segment(p.source); err == nil {
		p.bytes, err = p.want.SegmentBytes()
	}
	if err != nil {
		return nil, errors.Join(err, p.source.Close())
	}
	return p, nil
}

// close closes the source of a cache that is not hosted after all.
func (p *prepared) close() error { return p.source.Close() }

// closeAll closes those that were not hosted.
func closeAll(all []*prepared, log *slog.Logger) {
	for _, p := range all {
		if err := p.close(); err != nil {
			log.Warn("closing a source", "cache", p.options.Name, "error", err)
		}
	}
}

// existing attaches to the segment that has the cache's name now, for looking at it only. nil: there is none, or, with an error, none that could be looked at.
func (p *prepared) existing() (*shm.Segment, error) {
	if p.options.Unnamed {
		return nil, nil
	}
	s, err := shm.Open(pathOf(p.options), shm.OpenOptions{ReadOnly: true})
	if errors.Is(err, shm.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cache %s: %w", p.options.Name, err)
	}
	return s, nil
}
