package cache_test

import (
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/decisions"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// A cache in one process makes exactly the simulator's decisions: the same hits, slots and victims,
// and the same costs, reference bytes and shared words.
func TestDecisionsAreTheSimulators(t *testing.T) {
	decisions.Compare(t, func(t *testing.T, o shm.Options) (*shm.Segment, decisions.Client) {
		seg := heap(t, o)
		t.Cleanup(func() { checkSound(t, seg) })
		return seg, decider{t, attach(t, seg)}
	})
}

// So does a client that knows when samples are read next.
func TestPlannedDecisionsAreTheSimulators(t *testing.T) {
	decisions.ComparePlanned(t, func(t *testing.T, o shm.Options, p *decisions.Plan) (*shm.Segment, decisions.Client) {
		seg := heap(t, o)
		t.Cleanup(func() { checkSound(t, seg) })
		c := fatal.Value(cache.Attach(seg, cache.Options{Next: p.Next}))(t)
		t.Cleanup(func() { c.Close() })
		return seg, decider{t, c}
	})
}

// decider is a decisions.Client.
type decider struct {
	t *testing.T
	c *cache.Cache
}

func (d decider) Get(i int, dst []byte) bool {
	_, hit, err := d.c.Get(i, dst)
	fatal.If(d.t, err)
	return hit
}

func (d decider) SetLoaded(i int, data []byte, took time.Duration) bool {
	r := fatal.Value(d.c.SetLoaded(i, [][]byte{data}, cache.Overwrite, took))(d.t)
	return r == cache.Stored
}

// The format and the policies agree on names and on what a policy needs.
func TestPoliciesOfTheFormat(t *testing.T) {
	for kind := policy.KindFirstCome; kind <= policy.KindPlanned; kind++ {
		policy := shm.Policy(kind - 1)
		if policy.String() != kind.String() || policy.Evicts() != kind.Evicts() ||
			policy.References() != kind.NeedsHits() || (policy == shm.PolicyPlanned) != kind.NeedsPlans() {
			t.Errorf("%s of the format is %s", policy, kind)
		}
	}
}

// All policies evict soundly while several clients set and get.
func TestPoliciesTogether(t *testing.T) {
	for kind := policy.KindCost; kind <= policy.KindLFU; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			o := evicting
			o.Samples, o.Slots, o.Policy = 100, 8, shm.Policy(kind-1)
			evictTogether(t, heap(t, o), func(int) int { return evictBytes })
		})
	}
}

// Reads that count no hit leave nothing for the policy.
func TestUncountedReadsAreNoHits(t *testing.T) {
	o := evicting
	o.Policy = shm.PolicyClock
	seg := mapped(t, o)
	c := attach(t, seg)
	dst := make([]byte, evictBytes)
	set(t, c, 0, payload(0, 1, evictBytes), 0, cache.Stored)
	for range c.Ready() {
	}
	for range 3 {
		if _, hit, err := c.Copy(0, dst); !hit || err != nil {
			t.Fatal(hit, err)
		}
	}
	expect.Equal(t, seg.Reference(0), 0, "reference byte after reads that are not counted")
	if _, hit, err := c.Get(0, dst); !hit || err != nil {
		t.Fatal(hit, err)
	}
	expect.Equal(t, seg.Reference(0), 1, "reference byte after a hit")
}
