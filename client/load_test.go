package client

import (
	"context"
	"slices"
	"testing"
	"time"

	policies "github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// A load that begins after another one has stored the sample, but after a miss of its own caller,
// finds the sample in the cache.
func TestLoadThatBeginsLateFindsTheSample(t *testing.T) {
	c, err := Create("", Options{Samples: 10, SampleBytes: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []byte{1, 2, 3, 4}
	load := func(context.Context) ([]byte, error) { return want, nil }
	if _, err := c.GetOrLoad(t.Context(), 5, load); err != nil {
		t.Fatal(err)
	}
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
		c, err := Create("", Options{Samples: 20, SampleBytes: 4, Slots: 20, Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		load := func(i int, waits time.Duration) (cost time.Duration) {
			_, err := c.GetOrLoad(ctx, i, func(within context.Context) ([]byte, error) {
				if within == ctx {
					t.Errorf("%v: a load is not measured", policy)
				}
				time.Sleep(waits)
				return make([]byte, 4), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(policies.Cost(shm.Meta(c.seg.Meta(uint64(i)).Load()).Cost()).Nanoseconds())
		}
		i := 0
		for _, waits := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond} {
			right := false
			var costs []time.Duration
			for ; !right && len(costs) < 10; i++ { // beside busy threads a wait costs less, so it asks again
				cost := load(i, waits)
				costs = append(costs, cost)
				right = cost >= waits*7/10 && cost <= waits*2
			}
			if !right {
				t.Errorf("%v: loads that took %v cost %v", policy, waits, costs)
			}
		}
		c.Close()
	}
}
