package served

import (
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
	tierkinds "github.com/stocached/stocached/tier/kinds"
)

// openTiers opens the tiers of a cache; nil: it has none.
func (h *Cache) openTiers(p *Prepared) (*tier.Set, error) {
	return tierkinds.Open(p.Options.Tiers, p.about(h.Log))
}

// readFrom makes the cache read from the source of a prepared cache, with counters, and the tiers around them.
func (h *Cache) readFrom(p *Prepared, tiers *tier.Set) {
	h.bare, h.ahead, h.programs, h.failures = p.source, p.ahead, nil, p.failures
	counted := wrap.Watch(p.source, &h.counts.source, h.failures)
	switch {
	case p.source.Info().Programs:
		h.programs = tier.NewPrograms(p.source, tiers, p.Options.ReadTimeout)
		h.source = h.programs
	case p.source.Info().Formats:
		h.programs = tier.NewPrograms(counted, tiers, p.Options.ReadTimeout)
		h.source = h.programs
	case tiers != nil:
		h.source = tier.Around(counted, tiers)
	default:
		h.source = counted
	}
	below := 0
	if tiers != nil {
		below = tiers.Samples()
	}
	h.segment.Region.Below().Store(uint64(below))
}

// closeTiers closes tiers in the background, as they write what waits.
func (h *Cache) closeTiers(tiers *tier.Set) {
	if tiers == nil {
		return
	}
	go func() {
		if err := tiers.Close(); err != nil {
			h.Log.Warn("closing tiers", "error", err)
		}
	}()
}

// Tiers describes the tiers of the cache. The caller has entered.
func (h *Cache) Tiers() []tier.Status {
	if h.tiers == nil {
		return nil
	}
	return h.tiers.Status()
}
