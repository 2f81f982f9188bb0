package client

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	policies "github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// A load that begins after another one has stored the sample, but after a miss of its own caller,
// finds the sample in the cache.
func TestLoadThatBeginsLateFindsTheSample(t *testing.T) {
	c := fatal.Value(Create("", Options{Samples: 10, SampleBytes: 4}))(t)
	defer c.Close()
	want := []byte{1, 2, 3, 4}
	load := func(context.Context) ([]byte, error) { return want, nil }
	fatal.Value(c.GetOrLoad(t.Context(), 5, load))(t)
	late, leader := c.join(5) // as GetOrLoad does after its miss
	if !leader {
		t.Fatal("the first load has not ended")
	}
	got, err := c.lead(t.Context(), 5, late, func(context.Context) ([]byte, error) {
		t.Error("the sample was loaded twice")
		return want, nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Error(got, err)
	}
}

// GetOrLoad tells a cache of any policy what its first loads cost.
func TestCostOfALoad(t *testing.T) {
	for _, policy := range []Policy{PolicyCost, PolicyLRU, PolicyFirstCome} {
		waits := []time.Duration{10 * time.Millisecond, 30 * time.Millisecond}
		right, costs := 0, []time.Duration(nil)
		for tries := 0; right < len(waits) && tries < 10; tries++ { // beside busy threads a wait costs less
			right, costs = 0, costsOf(t, policy, waits)
			for k, cost := range costs {
				if cost >= waits[k]*7/10 && cost <= waits[k]*2 {
					right++
				}
			}
		}
		if right < len(waits) {
			t.Errorf("%v: loads that took %v cost %v", policy, waits, costs)
		}
	}
}

// costsOf returns what loads cost that take so long, the first ones of a new cache.
func costsOf(t *testing.T, policy Policy, waits []time.Duration) (costs []time.Duration) {
	c := fatal.Value(Create("", Options{Samples: 20, SampleBytes: 4, Slots: 20, Policy: policy}))(t)
	defer c.Close()
	ctx := t.Context()
	for i, wait := range waits {
		_, err := c.GetOrLoad(ctx, i, func(within context.Context) ([]byte, error) {
			if within == ctx {
				t.Errorf("%v: a load is not measured", policy)
			}
			time.Sleep(wait)
			return make([]byte, 4), nil
		})
		fatal.If(t, err)
		cost := policies.Cost(shm.Meta(c.seg.Meta(uint64(i)).Load()).Cost())
		costs = append(costs, time.Duration(cost.Nanoseconds()))
	}
	return costs
}
