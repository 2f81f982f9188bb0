package advise

import (
	"fmt"
	"math"

	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// A cache whose policy evicts, and is neither cost nor planned, has no set that stays: what it has now is not what an
// epoch will hit. So an epoch of such a cache is simulated.

// changes says whether the set of a full cache with this policy changes all the time.
func changes(kind policy.Kind) bool {
	return kind.Evicts() && !kind.NeedsCosts() && !kind.NeedsPlans()
}

// full is the part of the room of a cache that evicts which is taken when samples go for others.
const full = 0.99

// trace is what one job reads that reads each sample once an epoch.
func trace(samples int, seed uint64) (*simulate.Trace, error) {
	return simulate.Jobs{Order: order.Order{Samples: uint64(samples), Kind: order.Shuffled, Seed: seed}, Jobs: 1,
		Epochs: simulatedEpochs}.Trace()
}

// last returns the last epoch of a policy with room for a part of the samples.
func last(t *simulate.Trace, kind policy.Kind, part float64, seed uint64) simulate.Epoch {
	room := uint64(math.Round(part * float64(t.Room())))
	return t.Run(kind, room, simulate.Options{Seed: seed}, nil)[simulatedEpochs-1]
}

// today computes what the loads of an epoch take with the policy of the cache, if its set changes all the time.
func (c *Curve) today(seed uint64) error {
	kind, err := policy.Parse(c.Today.Policy)
	if err != nil || !changes(kind) || c.Today.Part < full*c.Today.Room || c.Today.Part >= 1 {
		return nil // unknown, or what it has now stays
	}
	t, err := c.trace(seed)
	if err != nil {
		return err
	}
	e := last(t, kind, c.Today.Room, seed)
	c.Today.Load, c.Today.Simulated = c.Load*(1-e.TimeSaved()), true
	c.Notes = append(c.Notes, fmt.Sprintf("%s: the policy %v lets samples go all the time. So the epoch of today is simulated, for one "+
		"job that reads each sample once: %.1f %% of the reads hit. Loaders read in batches, and then a small cache hits more "+
		"(stocached simulate --policy %v --batch)", c.Name, kind, 100*e.HitRate(), kind))
	return nil
}

// hitRate is that of an epoch of one job that reads each sample once, for policies which know no costs. Ready is
// the number of samples that are cached.
func hitRate(name string, seg *shm.Segment, ready uint64, seed uint64) (float64, error) {
	kind, samples := policy.Kind(seg.Policy)+1, float64(seg.Samples)
	slots := seg.SampleSlots()
	switch {
	case kind.NeedsPlans():
		return math.NaN(), fmt.Errorf("%w: with the policy planned, hits of cache %s depend on what jobs have announced; stocached simulate "+
			"--policy planned --jobs N predicts them", ErrUnknown, name)
	case !changes(kind), ready == seg.Samples, !seg.Variable() && float64(ready) < full*float64(slots):
		return float64(ready) / samples, nil
	case seg.Variable():
		return math.NaN(), fmt.Errorf("%w: the samples of cache %s differ in size, and with the policy %v what it hits depends on that; "+
			"stocached advise %s has today's epoch", ErrUnknown, name, kind, name)
	}
	t, err := trace(int(min(seg.Samples, simulated)), seed)
	if err != nil {
		return math.NaN(), err
	}
	return last(t, kind, float64(slots)/samples, seed).HitRate(), nil
}
