package policy_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/policy"
)

func candidate(sample uint64, nanoseconds, size uint64) policy.Candidate {
	cost, _ := policy.Cost(0).Loaded(nanoseconds, 0, 0)
	return policy.Candidate{Sample: sample, Size: size, Cost: cost}
}

// cost: the cheapest of those looked at goes, if the new sample costs 25 % more, per byte.
func TestCost(t *testing.T) {
	rule := policy.KindCost.New(10, 1).Rule()
	for _, c := range []struct {
		what     string
		newcomer policy.Candidate
		held     []policy.Candidate
		want     int // index of the one that goes; -1: none
	}{
		{"the cheapest", candidate(9, 9e6, 1),
			[]policy.Candidate{candidate(1, 3e6, 1), candidate(2, 2e6, 1), candidate(3, 4e6, 1)}, 1},
		{"all are costlier", candidate(9, 1e6, 1), []policy.Candidate{candidate(1, 3e6, 1), candidate(2, 2e6, 1)}, -1},
		{"less than 25 % costlier", candidate(9, 2.2e6, 1), []policy.Candidate{candidate(1, 2e6, 1)}, -1},
		{"costlier, and a step more", candidate(9, 3e6, 1), []policy.Candidate{candidate(1, 2e6, 1)}, 0},
		{"per byte", candidate(9, 8e6, 8000), []policy.Candidate{candidate(1, 2e6, 1000), candidate(2, 2e6, 8000)}, 1},
		{"costlier, but less for a byte", candidate(9, 8e6, 9000), []policy.Candidate{candidate(1, 2e6, 1000)}, -1},
		{"unknown", policy.Candidate{Sample: 9, Size: 1}, []policy.Candidate{candidate(1, 2e6, 1)}, -1},
		{"beside unknown", candidate(9, 9e6, 1), []policy.Candidate{{Sample: 1, Size: 1}}, -1},
	} {
		s := policy.NewSearch(rule, c.newcomer, 0, 10, nil)
		for k, held := range c.held {
			s.Look(uint64(k), uint64(k), held)
		}
		_, slot, ok := s.Victim()
		if ok != (c.want >= 0) || ok && slot != uint64(c.want) {
			t.Errorf("%s: slot %d, %v; want %d", c.what, slot, ok, c.want)
		}
	}
}

// planned: a search looks first at the slot that earlier ones left as the best. What it passes over comes into the pool,
// if it is read later than what is there.
func TestPool(t *testing.T) {
	rule := policy.KindPlanned.New(100, 1).Rule()
	var pool policy.Pool
	// search looks at these slots in turn, and returns the slot that it looked at first, and that of the victim.
	search := func(newcomer uint64, slots, next []uint64) (first, victim uint64, ok bool) {
		s := policy.NewSearch(rule, policy.Candidate{Sample: 999, Next: newcomer}, 0, 100, &pool)
		first = s.Slot(7)
		for k, slot := range slots {
			s.Look(uint64(k), slot, policy.Candidate{Sample: slot, Next: next[k]})
		}
		_, victim, ok = s.Victim()
		return first, victim, ok
	}
	random := rule.Slot(7, 100)
	if first, victim, ok := search(5, []uint64{1, 2, 3, 4, 5, 6, 7}, []uint64{10, 70, 60, 0, 20, 30, 60}); first != random ||
		victim != 2 || !ok {
		t.Fatal(first, victim, ok)
	}
	// The pool has 3, 7, 6, 5. Nothing goes for a newcomer that is read last: then the best comes back.
	if first, _, ok := search(65, []uint64{3, 8}, []uint64{60, 19}); first != 3 || ok {
		t.Fatal(first, ok)
	}
	s := policy.NewSearch(rule, policy.Candidate{Sample: 999, Next: 5}, 0, 100, &pool)
	var soon []uint64
	for k, want := range []uint64{7, random} {
		fatal.Equal(t, s.Slot(7), want, "the slot of look %d", k)
		soon = append(soon, s.Soon())
		s.Look(7, 90, policy.Candidate{Sample: 90, Next: 200})
	}
	s.Look(8, 91, policy.Candidate{Sample: 91, Next: 40})
	if soon = append(soon, s.Soon()); !slices.Equal(soon, []uint64{0, 0, 30}) { // the pool has 90, 3, 91, 6
		t.Fatal(soon)
	}
	// A cache with fewer slots looks elsewhere. The slots of two searches at the same time are merged.
	other, left := policy.Pool{}, pool
	other.Merge(&left)
	pool.Merge(&other)
	few := policy.NewSearch(rule, policy.Candidate{Sample: 999, Next: 5}, 0, 50, &other)
	fatal.Equal(t, few.Slot(7), rule.Slot(7, 50), "")
	for _, want := range []uint64{90, 90, 3, 3} {
		s := policy.NewSearch(rule, policy.Candidate{Sample: 999, Next: 5}, 0, 100, &pool)
		fatal.Equal(t, s.Slot(7), want, "slot")
	}
}

// The byte of a cost: monotone, 1.2 us to 62 minutes, at most half a step off.
func TestCostByte(t *testing.T) {
	last := policy.Cost(0)
	for ns := uint64(1); ns < 1<<62; ns += ns/64 + 1 {
		c, _ := policy.Cost(0).Loaded(ns, 0, 0)
		if c < last || c == 0 || c.Confirmed() {
			t.Fatalf("%d ns: %d after %d", ns, c, last)
		}
		last = c
		if ns > 1300 && ns < 3700e9 {
			// Without a draw the level is rounded down.
			if ratio := float64(ns) / float64(c.Nanoseconds()); ratio < 0.98 || ratio > 1.21 {
				t.Fatalf("%d ns became %d ns", ns, c.Nanoseconds())
			}
		}
	}
	if last != 254 || policy.Cost(0).Nanoseconds() != 0 {
		t.Error(last)
	}
	if c, _ := policy.Cost(0).Loaded(0, 0, math.MaxUint64); c.Nanoseconds() != 1218 {
		t.Error(c.Nanoseconds())
	}
	// On average it is not off.
	sum := 0.0
	for k := range uint64(10_000) {
		c, _ := policy.Cost(0).Loaded(1_234_567, 0, policy.Random(1, k))
		sum += math.Log2(float64(c.Nanoseconds()))
	}
	if got := math.Exp2(sum / 10_000); got < 1_215_000 || got > 1_255_000 {
		t.Error(got)
	}
}

// noisy returns a load of about ns with 30 % noise.
func noisy(ns float64, draw uint64) uint64 {
	sum := 0.0
	for k := range uint64(12) {
		sum += float64(policy.Random(draw, k)>>11) / (1 << 53)
	}
	return uint64(ns * math.Exp(0.3*(sum-6)))
}

// settle returns the spread after loads of samples with costs of the given sigma, each loaded twice.
func settle(sigma float64, stalls bool) policy.Spread {
	var spread policy.Spread
	costs := make([]policy.Cost, 3000)
	for round := range uint64(2) {
		for sample := range uint64(3000) {
			truth := 5e6 * math.Exp(sigma*math.Log(float64(noisy(1e9, sample+1<<40))/1e9)/0.3)
			ns := noisy(truth, sample*2+round)
			if stalls && policy.Random(round, sample)%200 == 0 {
				ns *= 20
			}
			costs[sample], spread = costs[sample].Loaded(ns, spread, policy.Random(round, sample))
		}
	}
	return spread
}

// A load far above all others, as of a process that was stopped for an hour, says nothing until the next load confirms
// it.
func TestStall(t *testing.T) {
	spread := settle(0.6, false)
	const hour = 3600e9
	load := func(c policy.Cost, ns uint64) policy.Cost {
		c, spread = c.Loaded(ns, spread, 0)
		return c
	}
	stopped := load(0, hour)
	average := load(load(0, 5e6), 5e6)
	for _, c := range []struct {
		what     string
		cost     policy.Cost
		doubtful bool
		least    float64 // milliseconds
		most     float64
	}{
		{"one load of an hour", stopped, true, 0, 0},
		{"two", load(stopped, hour), false, 3e6, 4e6},
		{"one of an hour and one of 5 ms", load(stopped, 5e6), false, 4, 6},
		{"one of 5 ms and one of an hour", load(load(0, 5e6), hour), true, 0, 0},
		{"two of 5 ms and one of an hour", load(average, hour), false, 4, 6},
		{"two of 5 ms and two of an hour", load(load(average, hour), hour), true, 0, 0},
		{"two of 5 ms and three of an hour", load(load(load(average, hour), hour), hour), false, 3e6, 4e6},
	} {
		ms := float64(c.cost.Believed(spread).Nanoseconds()) / 1e6
		if c.cost.Doubtful(spread) != c.doubtful || ms < c.least || ms > c.most {
			t.Errorf("%s: %g ms, doubtful %v", c.what, ms, c.cost.Doubtful(spread))
		}
	}
}

// A process that is stopped for 300 ms in any load of a new cache makes no sample a costly one. The sample goes before
// others, and no other sample goes for it.
func TestStoppedSampleGoes(t *testing.T) {
	rule := policy.KindCost.New(10, 1).Rule()
	for _, sigma := range []float64{0.05, 0.6} {
		for _, stopped := range []uint64{0, 1, 3, 150, 1200} {
			var spread policy.Spread
			costs := make([]policy.Cost, stopped+50)
			for k := range uint64(len(costs)) {
				ns := uint64(1e6 * math.Exp(sigma*math.Log(float64(noisy(1e9, k+1<<40))/1e9)/0.3))
				if k == stopped {
					ns += 300e6
				}
				costs[k], spread = costs[k].Loaded(ns, spread, policy.Random(7, k))
			}
			sample := policy.Candidate{Sample: stopped, Cost: costs[stopped], Size: 1}
			if sample.Cost.Believed(spread) != 0 {
				t.Errorf("stopped in load %d: it counts as %d ns", stopped, sample.Cost.Nanoseconds())
			}
			for k, cost := range costs {
				other := policy.Candidate{Sample: uint64(k), Cost: cost, Size: 1}
				if other.Sample == stopped || cost.Doubtful(spread) {
					continue
				}
				if !rule.Yields(other, sample, spread) || rule.Yields(sample, other, spread) ||
					rule.Worth(sample, 0, spread) >= rule.Worth(other, 0, spread) {
					t.Fatalf("stopped in load %d: it does not go before sample %d", stopped, k)
				}
			}
		}
	}
}
