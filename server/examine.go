package server

import (
	"context"

	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/tier"
)

// Examined is what a server of a tier says about one thing.
type Examined struct {
	Cache string
	Tier  int // its number in the list of tiers
	tier.Finding
}

// Examine asks the servers of all tiers what an operator should change. It opens the sources of these
// caches, and starts nothing. Errors: those of New.
func Examine(ctx context.Context, o Options) (all []Examined, err error) {
	for _, c := range o.Caches {
		if len(c.Tiers) == 0 {
			continue
		}
		found, err := served.Examine(ctx, c, o.opener())
		if err != nil {
			return all, err
		}
		for k, findings := range found {
			for _, f := range findings {
				all = append(all, Examined{c.Name, k, f})
			}
		}
	}
	return all, nil
}
