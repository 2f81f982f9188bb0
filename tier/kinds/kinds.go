// Package kinds is the list of all kinds of tier, and opens the tiers of a cache by their settings.
package kinds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
	"github.com/stocached/stocached/tier/cluster"
	"github.com/stocached/stocached/tier/disk"
)

// All lists all kinds.
var All = []tier.Kind{disk.Kind, cluster.Kind}

// defaults of the keys that all kinds have. memory bounds the queue of writes of a tier.
var defaults = source.Settings{"memory": "64MiB"}

// Defaults returns the defaults of a tier's keys, by its settings.
func Defaults(settings source.Settings) source.Settings {
	for _, k := range All {
		if k.Name == settings["kind"] {
			return k.Defaults.Or(defaults)
		}
	}
	return maps.Clone(defaults)
}

// one is a tier in a configuration, without the keys of its kind.
type one struct {
	Kind   string     `key:"kind"`
	Memory size.Bytes `key:"memory"`
}

// split returns the kind of a tier, its own keys, and those of all kinds.
func split(settings source.Settings) (kind tier.Kind, own source.Settings, common one, err error) {
	own, both := maps.Clone(settings), source.Settings{}
	for _, key := range []string{"kind", "memory"} {
		if value, ok := own[key]; ok {
			both[key] = value
			delete(own, key)
		}
	}
	if err := errors.Join(both.Or(defaults).Decode(&common), both.NotZero("memory")); err != nil {
		return kind, nil, common, err
	}
	var known []string
	for _, k := range All {
		if k.Name == common.Kind {
			return k, own, common, nil
		}
		known = append(known, k.Name)
	}
	what := "kind is missing"
	if common.Kind != "" {
		what = fmt.Sprintf("there is no kind %q", common.Kind)
	}
	return kind, nil, common, fmt.Errorf("%w: %s; known are: %s", source.ErrInvalid, what, strings.Join(known, ", "))
}

// invalid is an error about one of the tiers. A source.ErrInvalid in it speaks of a tier.
type invalid struct {
	tier int
	err  error
}

func (e invalid) Error() string {
	return fmt.Sprintf("tiers[%d]: %s", e.tier, strings.Replace(e.err.Error(), source.ErrInvalid.Error(), "invalid tier", 1))
}

func (e invalid) Unwrap() error { return e.err }

// Check checks the settings of the tiers of a cache, and opens nothing. Errors: source.ErrInvalid, errors
// of files that settings name, with the tier and the key.
func Check(all []source.Settings, about tier.About) error {
	folders := map[any]int{} // for tiers on a disk: in each folder the cache has one file
	for k, settings := range all {
		kind, own, common, err := split(settings)
		if most := int64(about.Info.Schema.SampleBytes); err == nil && int64(common.Memory) < most {
			err = fmt.Errorf("%w: memory: %d bytes are less than a sample, which takes %d", source.ErrInvalid,
				common.Memory, most)
		}
		if err == nil {
			err = kind.Check(own, about)
		}
		if err == nil && !kind.Shared {
			if first, taken := folders[own["dir"]]; taken {
				err = fmt.Errorf("%w: dir: tiers[%d] has this folder; leave one of them out", source.ErrInvalid, first)
			}
			folders[own["dir"]] = k
		}
		if err != nil {
			return invalid{k, err}
		}
	}
	return nil
}

// Misplaced says which tiers of a cache stand where they help little, and what to do: an advice by the number of
// the tier. The settings are valid.
func Misplaced(all []source.Settings) map[int]string {
	advice, shared := map[int]string{}, -1
	for k, settings := range all {
		kind, _, _, err := split(settings)
		switch {
		case err != nil:
		case kind.Shared && shared < 0:
			shared = k
		case !kind.Shared && shared >= 0:
			advice[k] = fmt.Sprintf("put it before tiers[%d] (%s): after it, each miss asks the network before the local disk, "+
				"and the disk keeps only what this machine itself loads from the source; leave it there only if the disk is slower "+
				"than the network", shared, all[shared]["kind"])
		}
	}
	return advice
}

// Shared says whether machines share one of the tiers of a cache.
func Shared(all []source.Settings) bool {
	return slices.ContainsFunc(all, func(settings source.Settings) bool {
		kind, _, _, err := split(settings)
		return err == nil && kind.Shared
	})
}

// Open opens the tiers of a cache, from fast to slow, and does not wait for their servers. nil: there
// are none. Errors: those of Check.
func Open(all []source.Settings, about tier.About) (*tier.Set, error) {
	if len(all) == 0 {
		return nil, nil
	}
	if err := Check(all, about); err != nil {
		return nil, err
	}
	var tiers []tier.Tier
	var memory []int64
	for k, settings := range all {
		kind, own, common, err := split(settings)
		var t tier.Tier
		if err == nil {
			t, err = kind.Open(own, about)
		}
		if err != nil {
			for _, opened := range tiers {
				err = errors.Join(err, opened.Close())
			}
			return nil, invalid{k, err}
		}
		tiers, memory = append(tiers, t), append(memory, int64(common.Memory))
	}
	return tier.New(tiers, memory), nil
}

// Examine asks the servers of the tiers of a cache what an operator should change.
func Examine(ctx context.Context, all []source.Settings, about tier.About) (findings [][]tier.Finding, err error) {
	misplaced := Misplaced(all)
	for k, settings := range all {
		kind, own, _, err := split(settings)
		var found []tier.Finding
		if err == nil {
			found, err = kind.Examine(ctx, own, about)
		}
		if err != nil {
			return nil, invalid{k, err}
		}
		if change := misplaced[k]; change != "" {
			found = append(found, tier.Finding{Where: fmt.Sprintf("tiers[%d]", k), What: "place among the tiers",
				Answer: "behind a tier that machines share", Change: change})
		}
		findings = append(findings, found)
	}
	return findings, nil
}
