package served

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
	tierkinds "github.com/stocached/stocached/tier/kinds"
)

// Prepared is a cache whose source is open and that has no segment yet.
type Prepared struct {
	Options  Options
	source   source.Source
	ahead    wrap.Ahead // part of the source; nil: it does not read ahead
	want     shm.Options
	Bytes    uint64         // bytes of its segment
	counts   *counts        // counts of the cache that it replaces; nil: none
	failures *wrap.Failures // failures of the source
}

// OpenFunc opens a source.
type OpenFunc = func(ctx context.Context, s source.Settings) (source.Source, error)

// Prepare opens the source of a cache, and makes nothing. Failures hear of requests that fail and are tried again.
// Errors have the cache's name.
func Prepare(ctx context.Context, o Options, open OpenFunc, failures *wrap.Failures) (p *Prepared, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	p = &Prepared{Options: o, failures: failures}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cache %s: %w", o.Name, err)
		}
	}()
	if p.source, p.ahead, err = kinds.Whole(p.failures.Context(ctx), open, o.Source, o.Decode); err != nil {
		return nil, err
	}
	if both, ok := p.source.(*decode.Both); ok {
		if p.source, err = p.choose(ctx, both); err != nil {
			return nil, errors.Join(err, both.Close())
		}
	}
	if err := p.checkSettings(); err != nil {
		return nil, errors.Join(err, p.source.Close())
	}
	fault.At("served.source")
	if p.want, err = o.segment(p.source); err == nil {
		p.Bytes, err = p.want.SegmentBytes()
	}
	if err != nil {
		return nil, errors.Join(err, p.source.Close())
	}
	return p, nil
}

// checkSettings checks the settings of tiers, and whether those of the source go together with them. Errors:
// source.ErrInvalid, those of tier/kinds.
func (p *Prepared) checkSettings() error {
	if p.ahead != nil && !p.ahead.Whole() && tierkinds.Shared(p.Options.Tiers) {
		return fmt.Errorf("%w: read_ahead beside a tier that machines share reads nothing ahead, because that could be what the "+
			"tier has; add blocks: true if the source has blocks, or leave read_ahead out and raise parallel",
			source.ErrInvalid)
	}
	if p.source.Info().Programs {
		for _, key := range kinds.Around {
			if _, there := p.Options.Source[key]; there {
				return fmt.Errorf("%w: source.%s: programs load the samples, so there is nothing to read; leave it out",
					source.ErrInvalid, key)
			}
		}
	}
	return tierkinds.Check(p.Options.Tiers, p.about(nil))
}

// Advise logs what works and should be changed.
func (p *Prepared) Advise(log *slog.Logger) {
	for _, note := range p.Notes() {
		if note.Advice {
			log.Warn("advice about the source", note.Name, note.Text)
		}
	}
	misplaced := tierkinds.Misplaced(p.Options.Tiers)
	for _, k := range slices.Sorted(maps.Keys(misplaced)) {
		log.Warn("advice about the tiers", fmt.Sprintf("tiers[%d]", k), misplaced[k])
	}
}

// Fingerprint returns that of the source.
func (p *Prepared) Fingerprint() string { return p.source.Info().Fingerprint }

// Notes returns those of the source.
func (p *Prepared) Notes() []source.Note { return p.source.Info().Notes }

// Look reads some files of the source. false: it has no pictures.
func (p *Prepared) Look(ctx context.Context) (decode.Looked, bool) {
	kinds := decode.KindsOf(p.source)
	if kinds == nil {
		return decode.Looked{}, false
	}
	return kinds.Look(ctx, p.Options.Parallel), true
}

// about is what tiers know of the cache. The fingerprint of programs is a text of the user, so what it goes with
// stands in theirs.
func (p *Prepared) about(log *slog.Logger) tier.About {
	info := p.source.Info()
	if info.Programs {
		info.Fingerprint = source.Fingerprint(info.Kind, fmt.Sprint(info.Fingerprint, info.Samples, info.Schema.Fields))
	}
	return tier.About{Cache: p.Options.Name, Info: info, Log: log, Within: p.Options.ReadTimeout}
}

// choose returns the form of a source that the cache keeps, with store: auto. An existing cache keeps its store.
func (p *Prepared) choose(ctx context.Context, both *decode.Both) (source.Source, error) {
	decoded, encoded := both.Forms()
	if s, err := p.openExisting(); s != nil && err == nil {
		defer s.Close()
		for k, form := range []source.Source{decoded, encoded} {
			want, err := p.Options.segment(form)
			if err != nil {
				return nil, err
			}
			if differs(&s.Header, &s.Geometry, &want) == "" {
				return both.Take(k == 1, "the existing cache has this store"), nil
			}
		}
	}
	if p.Options.Size == 0 {
		return both.Take(false, "a cache of the size all has room for every picture"), nil
	}
	measured, ok := both.Measure(ctx, p.Options.Parallel)
	if !ok {
		return both.Take(false, "no file could be read and decoded in time"), nil
	}
	return both.Take(measured.Choose(decode.TermsOf(p.Options.Size, p.Options.Parallel,
		p.Options.Policy == shm.PolicyCost))), nil
}

// CloseAll closes the sources of caches that will not be served.
func CloseAll(log *slog.Logger, all ...*Prepared) {
	for _, p := range all {
		if err := p.source.Close(); err != nil {
			log.Warn("closing a source", "cache", p.Options.Name, "error", err)
		}
	}
}

// openExisting opens the present segment of the cache's name, read-only. nil: there is none, or,
// with an error, it does not open.
func (p *Prepared) openExisting() (*shm.Segment, error) {
	s, err := p.find(true)
	if errors.Is(err, shm.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cache %s: %w", p.Options.Name, err)
	}
	return s, nil
}

// CheckExisting returns why the present segment of the cache's name is neither taken nor replaced. nil: it is, or there is
// none.
func (p *Prepared) CheckExisting() error {
	s, err := p.openExisting()
	if s != nil {
		return s.Close()
	}
	if errors.Is(err, shm.ErrVersion) {
		_, err = p.replaceable()
	}
	return err
}

// replaceable returns the present segment of another version. Errors: ErrVersion, if processes use it.
func (p *Prepared) replaceable() (shm.Listed, error) {
	l, err := shm.LookAt(p.Options.Path())
	if err == nil && l.OtherVersion() {
		err = l.CheckReplaceable()
	}
	if err != nil {
		err = fmt.Errorf("cache %s: %w", p.Options.Name, err)
	}
	return l, err
}

// Existing describes the present segment of a cache's name.
type Existing struct {
	Same      bool   // the segment has the data and size that the cache needs
	Alone     bool   // no process but this server uses it
	Allocated uint64 // bytes of pages
	Promised  uint64 // bytes that it may still allocate
}

// Existing describes the present segment of the cache's name. The zero value: there is none, or it
// does not open.
func (p *Prepared) Existing() (t Existing, err error) {
	s, err := p.openExisting()
	if errors.Is(err, shm.ErrVersion) {
		if l, err := p.replaceable(); err == nil {
			return Existing{Alone: true, Allocated: l.Allocated}, nil
		}
	}
	if s == nil || err != nil {
		return t, nil // the segment stays as it is, and the server leaves the cache out
	}
	defer s.Close()
	if t.Allocated, err = s.AllocatedBytes(); err != nil {
		return t, err
	}
	t.Promised = s.SegmentBytes - min(t.Allocated, s.SegmentBytes)
	t.Same = differs(&s.Header, &s.Geometry, &p.want) == ""
	probe, err := s.ProbeLocks()
	own := 0
	if probe.Server {
		own = 1
	}
	t.Alone = len(probe.Records) <= own
	return t, err
}

// Examine asks the servers of the tiers of a cache what an operator should change.
func Examine(ctx context.Context, o Options, open OpenFunc) ([][]tier.Finding, error) {
	quiet := slog.New(slog.DiscardHandler)
	p, err := Prepare(ctx, o, open, wrap.NewFailures(quiet))
	if err != nil {
		return nil, err
	}
	found, err := tierkinds.Examine(ctx, o.Tiers, p.about(quiet))
	return found, errors.Join(err, p.source.Close())
}
