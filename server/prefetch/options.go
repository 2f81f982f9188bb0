package prefetch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
)

// Options name the order in which a job will read the samples of a cache. Operators send them as
// JSON. docs/spec/order.md explains the fields of an order.
type Options struct {
	// of the plan in its cache; a new plan replaces one of the same name. "": "plan"
	Name      string   `json:"name"`
	Samples   uint64   `json:"samples"` // samples of the job's dataset; 0: unknown
	Kind      string   `json:"kind"`    // as order.Kind writes it
	Seed      uint64   `json:"seed"`
	Window    uint64   `json:"window"`
	Block     uint64   `json:"block"`
	Epoch     uint64   `json:"epoch"`
	Position  uint64   `json:"position"`   // position of the job in the epoch
	WorldSize uint64   `json:"world_size"` // ranks of the job; 0: 1
	Ranks     []uint64 `json:"ranks"`      // the ranks that read this cache; nil: all
	Ends      string   `json:"ends"`       // uneven, pad or drop. "": uneven
	// the most samples that the server reads ahead of the clients. 0: 4,096
	Ahead uint64 `json:"ahead"`
}

// order checks the options against the cache. Errors: order.ErrInvalid.
func (o *Options) order(samples uint64) (of order.Order, ends order.Ends, err error) {
	of = order.Order{Samples: samples, Seed: o.Seed, Window: o.Window, Block: o.Block}
	if o.Samples != 0 && o.Samples != samples {
		return of, 0, fmt.Errorf("%w: the plan has %d samples, and the cache %d; a plan of another dataset "+
			"would read samples that no client asks for", order.ErrInvalid, o.Samples, samples)
	}
	kind, err := numberOf("kind", o.Kind, order.Sequential.String(), order.Shuffled.String(), order.Windows.String(),
		order.Blocks.String())
	if err != nil {
		return of, 0, err
	}
	of.Kind = order.Kind(kind)
	end, err := numberOf("ends", o.Ends, "uneven", "pad", "drop") // as order.Ends numbers them
	return of, order.Ends(end), err
}

// numberOf returns which of its names the value of a key is. Errors: order.ErrInvalid.
func numberOf(key, value string, names ...string) (int, error) {
	k := slices.Index(names, value)
	if k < 0 {
		return 0, fmt.Errorf("%w: %s %q; there are: %s", order.ErrInvalid, key, value, strings.Join(names, ", "))
	}
	return k, nil
}

// complete fills in defaults, and returns the shards of the ranks.
func (o *Options) complete(samples uint64) (parts []*order.Part, err error) {
	o.Ends = cmp.Or(o.Ends, "uneven")
	of, ends, err := o.order(samples)
	if err != nil {
		return nil, err
	}
	o.Name, o.Samples, o.WorldSize, o.Ahead = cmp.Or(o.Name, "plan"), samples, max(o.WorldSize, 1),
		cmp.Or(o.Ahead, defaultAhead)
	if err := shm.CheckName(o.Name); err != nil {
		return nil, fmt.Errorf("the name of the plan: %w", err)
	}
	const maxRanks = 1 << 16
	if o.WorldSize > maxRanks {
		return nil, fmt.Errorf("%w: a world_size of %d, at most %d", order.ErrInvalid, o.WorldSize, maxRanks)
	}
	if o.Ranks == nil {
		for rank := range o.WorldSize {
			o.Ranks = append(o.Ranks, rank)
		}
	}
	o.Ranks = slices.Compact(slices.Sorted(slices.Values(o.Ranks)))
	if len(o.Ranks) == 0 {
		return nil, fmt.Errorf("%w: a plan of no ranks; leave ranks out for all", order.ErrInvalid)
	}
	epoch, err := of.Epoch(o.Epoch)
	if err != nil {
		return nil, err
	}
	for _, rank := range o.Ranks {
		part, err := order.Shard{Rank: rank, Ranks: o.WorldSize, From: o.Position, Ends: ends}.Of(epoch)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}
