// Package served has the caches of a server. Each is a segment, the server's own client of it, and
// the source that fills it.
//
// Prepare (prepare.go) opens the source of a cache, so that its size is known, and makes nothing.
// Serve (cache.go) then creates the segment, or adopts a warm one, and starts the filler. unused.go
// has the janitor's part, stats.go what operators see. The package imports fill and prefetch, and
// knows no clients and no sockets.
package served

import (
	"fmt"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
	tierkinds "github.com/stocached/stocached/tier/kinds"
)

// openTiers opens the tiers of a cache; nil: it has none.
func (h *Cache) openTiers(p *Prepared) (*tier.Set, error) {
	return tierkinds.Open(p.Options.Tiers, tier.About{Cache: h.Name, Info: p.source.Info(), Log: h.Log,
		Within: p.Options.ReadTimeout})
}

// around returns the source of a prepared cache with counters, and the tiers around them.
func (h *Cache) around(p *Prepared, tiers *tier.Set) source.Source {
	counted := wrap.Count(p.source, &h.counts.source)
	if tiers == nil {
		return counted
	}
	return tier.Around(counted, tiers)
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

// Problems returns a line for each node of a tier that is left out, and for what an operator should change.
func (h *Cache) Problems() (lines []string) {
	if !h.Enter() {
		return nil
	}
	defer h.Leave()
	if h.tiers != nil {
		for _, line := range h.tiers.Problems() {
			lines = append(lines, fmt.Sprintf("cache %s: %s", h.Name, line))
		}
	}
	return lines
}
