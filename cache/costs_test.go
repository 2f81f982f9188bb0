package cache_test

import (
	"bytes"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Costs are those of the loads, also of samples that went. Stats adds up those of all samples, and
// those of the cached ones.
func TestCosts(t *testing.T) {
	o := evicting
	o.Policy = shm.PolicyCost
	seg := mapped(t, o)
	seg.Header.UUID = [16]byte{7} // the seed of the policy
	c := attach(t, seg)
	loaded := func(i int, took time.Duration) {
		t.Helper()
		fatal.Gives(c.SetLoaded(i, [][]byte{payload(i, 1, evictBytes)}, 0, took))(t, cache.Stored, i)
	}
	set(t, c, 11, payload(11, 1, evictBytes), 0, cache.Stored) // no time: unknown, and it stays
	for i := range 3 {
		loaded(i, 8*time.Millisecond)
	}
	loaded(3, 80*time.Millisecond) // one of 0..2 goes
	costs := make([]cache.Cost, 12)
	fatal.If(t, c.Costs(0, costs))
	near := func(got, want float64) bool { return math.Abs(got/want-1) < 0.2 } // a level is 19 %
	for i, cost := range costs {
		got := time.Duration(cost.Nanoseconds()).Seconds()
		if known := i < 4; known != (cost != 0) || i < 3 && !near(got, 0.008) || i == 3 && (got < 0.03 || got > 0.088) {
			t.Errorf("sample %d costs %g s", i, got) // no load counts as more than four times the first one, at first
		}
	}
	each, dear := float64(costs[0].Nanoseconds())/1e9, float64(costs[3].Nanoseconds())/1e9
	s := stats(t, c)
	if s.Costs.Known != 4 || s.Costs.Ready != 3 || s.Ready != 4 || s.Evicted != 1 ||
		!near(s.Costs.KnownSeconds, 3*each+dear) || !near(s.Costs.SavedSeconds, 2*each+dear) ||
		!near(s.Costs.FirstComeSeconds(), (3*each+dear)*3/4) {
		t.Errorf("%+v, first-come %g", s, s.Costs.FirstComeSeconds())
	}
	for _, bad := range [][2]int{{-1, 2}, {11, 2}, {13, 0}} {
		if err := c.Costs(bad[0], make([]cache.Cost, bad[1])); !errors.Is(err, shm.ErrIndex) {
			t.Errorf("%v: %v", bad, err)
		}
	}

	// Other policies keep what they are told, though they do not decide by it.
	for policy := shm.PolicyFirstCome; policy <= shm.PolicyPlanned; policy++ {
		o.Policy = policy
		c = attach(t, mapped(t, o))
		loaded(0, time.Second)
		s = stats(t, c)
		if err := c.Costs(0, costs); err != nil || !near(float64(costs[0].Nanoseconds()), 1e9) || costs[1] != 0 ||
			s.Costs.Known != 1 || !near(s.Costs.SavedSeconds, 1) || s.Costs.LoadSeconds != 1 {
			t.Errorf("%v: %v, %v, %+v", policy, err, costs, s)
		}
	}
}

// A fill that keeps the place of the sample also keeps what its load took.
func TestCostOfAnOverwrite(t *testing.T) {
	for _, variable := range []bool{false, true} {
		o := shm.Options{Samples: 10, SampleBytes: 64, Slots: 10}
		if variable {
			o = shm.Options{Samples: 10, SampleBytes: 64, Variable: true, Limit: 8 << 20}
		}
		c := attach(t, mapped(t, o))
		for k := range 3 {
			data := bytes.Repeat([]byte{byte(k)}, 64)
			r, err := c.SetLoaded(4, [][]byte{data}, cache.Overwrite, time.Second)
			got := make([]byte, 64)
			if _, hit, e := c.Get(4, got); r != cache.Stored || !hit || errors.Join(err, e) != nil || !bytes.Equal(got, data) {
				t.Errorf("variable %v, fill %d: %v, %v, %v, %v", variable, k, r, err, e, got)
			}
		}
		if s := stats(t, c); s.Costs.Known != 1 || s.Costs.LoadSeconds != 3 {
			t.Errorf("variable %v: %+v", variable, s.Costs)
		}
	}
}

// Callers measure each load for the policy cost, and for others the first ones and then one in 16.
func TestMeasureNext(t *testing.T) {
	for policy, want := range map[shm.Policy]int{shm.PolicyCost: 4096, shm.PolicyFirstCome: 1024 + (4096-1024)/16,
		shm.PolicyLRU: 1024 + (4096-1024)/16} {
		o := evicting
		o.Policy = policy
		c := attach(t, mapped(t, o))
		measured := 0
		for k := range 4096 {
			if c.MeasureNext() {
				measured++
			} else if k < 1024 {
				t.Fatalf("%v: load %d is not measured", policy, k)
			}
		}
		expect.Equal(t, measured, want, "%v: measured of 4096 loads", policy)
	}
}

// A fill in pieces tells what the load took when it publishes. So its sample may go for a costlier one; that of
// a fill without a time stays.
func TestPublishLoaded(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 21, Slots: 2, SampleBytes: evictBytes, Policy: shm.PolicyCost})
	c := attach(t, seg)
	fill := func(i int, took time.Duration) {
		t.Helper()
		k, r, err := c.Claim(i, evictBytes, 0)
		if err != nil || r != cache.Stored {
			t.Fatal(i, r, err)
		}
		fatal.Value(k.WriteAt(payload(i, 1, evictBytes), 0))(t)
		expect.Error(t, k.PublishLoaded(-time.Second), shm.ErrInvalid)
		fatal.If(t, k.PublishLoaded(took))
	}
	expect.Fails(c.SetLoaded(0, [][]byte{payload(0, 1, evictBytes)}, 0, -time.Second))(t, shm.ErrInvalid)
	fill(0, 0)
	fill(1, 8*time.Millisecond)
	costs := make([]cache.Cost, 2)
	if err := c.Costs(0, costs); err != nil || costs[0] != 0 {
		t.Error(costs, err)
	}
	if got := time.Duration(costs[1].Nanoseconds()); got < 7*time.Millisecond || got > 9*time.Millisecond {
		t.Errorf("it costs %v", got)
	}
	if s := stats(t, c); s.Costs.Known != 1 || s.Costs.LoadSeconds != 0.008 {
		t.Errorf("%+v", s.Costs)
	}
	costly, r, err := 1, cache.Full, error(nil)
	for r == cache.Full && err == nil && costly < 20 { // for 1 in 32, all looks meet the one that stays
		costly++
		r, err = c.SetLoaded(costly, [][]byte{payload(costly, 1, evictBytes)}, 0, time.Second)
	}
	if r != cache.Stored || err != nil {
		t.Fatal(r, err)
	}
	wantSample(t, c, 0, payload(0, 1, evictBytes))
	wantSample(t, c, costly, payload(costly, 1, evictBytes))
}
