package policy_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stocached/stocached/policy"
)

// fifo: samples go in the order in which they came.
func TestFIFO(t *testing.T) {
	c := newCacheOf(policy.KindFIFO, 5, 0)
	for sample := range uint64(23) {
		want := int(sample) - 5
		if _, victim, _ := c.read(sample, 1); victim != max(want, -1) {
			t.Fatalf("sample %d makes %d go", sample, victim)
		}
		c.hit(int(sample % 5)) // changes nothing
	}
}

// random: each slot goes equally often.
func TestRandom(t *testing.T) {
	c := newCacheOf(policy.KindRandom, 10, 1)
	var taken [10]float64
	for sample := range uint64(10_010) {
		if slot, victim, _ := c.read(sample, 1); victim >= 0 {
			taken[slot]++
		}
	}
	chi := 0.0
	for _, n := range taken {
		chi += (n - 1000) * (n - 1000) / 1000
	}
	if chi > 27.9 { // one in a thousand for 9 degrees of freedom
		t.Error(taken, chi)
	}
}

// clock: a sample that was hit outlives those that were not, and one that is no longer hit goes.
func TestClock(t *testing.T) {
	c := newCacheOf(policy.KindClock, 8, 0)
	for sample := range uint64(8) {
		c.read(sample, 1)
	}
	for sample := uint64(100); sample < 200; sample++ {
		if _, _, hit := c.read(3, 1); !hit {
			t.Fatal("a sample that is hit between all sets went")
		}
		c.read(sample, 1)
	}
	for sample := uint64(200); c.find(3) >= 0; sample++ {
		if c.read(sample, 1); sample > 1000 {
			t.Fatal("a sample that is no longer hit stays")
		}
	}
	// All bytes are at their most: the search ends, and takes one.
	for k := range c.slots {
		c.slots[k].reference = 3
	}
	before := c.hand
	if _, victim, _ := c.read(5000, 1); victim < 0 || c.hand-before > 64 {
		t.Error(victim, c.hand-before)
	}
}

// lru: of the samples that it looks at, the one goes whose last hit is longest ago.
func TestLRU(t *testing.T) {
	const slots = 1000
	c, random := newCacheOf(policy.KindLRU, slots, 2), newCacheOf(policy.KindRandom, slots, 2)
	var looked []uint64
	c.looked = func(slot uint64) { looked = append(looked, slot) }
	last := make([]uint64, slots) // hand at the last read of each slot
	hits, randomHits := 0, 0
	for k := range uint64(20_000) {
		looked = looked[:0]
		sample := k/4 + policy.Random(4, k)%800 // what was read lately is read again
		slot, victim, hit := c.read(sample, 1)
		for _, other := range looked {
			if tick := uint64(slots * 5 / 8); victim >= 0 && last[slot] > last[other]+tick {
				t.Fatalf("the sample read at %d goes, and not the one read at %d", last[slot], last[other])
			}
		}
		last[slot] = c.hand
		if hit {
			hits++
		}
		if _, _, hit := random.read(sample, 1); hit {
			randomHits++
		}
	}
	if hits < randomHits+500 {
		t.Error(hits, randomHits)
	}
}

// lfu: of the samples that it looks at, the one with the fewest hits goes; what is no longer read
// goes in time.
func TestLFU(t *testing.T) {
	const slots = 64
	c := newCacheOf(policy.KindLFU, slots, 2)
	for sample := range uint64(slots) {
		c.read(sample, 1)
	}
	for range 20 { // hits are counted while the hand moves
		for sample := range uint64(slots) {
			for range sample {
				c.hand++
				c.hit(int(sample))
			}
		}
	}
	next := uint64(1000)
	for range 300 {
		c.read(next, 1)
		next++
	}
	frequent := 0
	for sample := uint64(slots / 2); sample < slots; sample++ {
		if c.find(sample) >= 0 {
			frequent++
		}
	}
	if frequent < slots/2-4 { // all 8 that are looked at may be frequent
		t.Errorf("%d of %d frequent samples are left", frequent, slots/2)
	}
	for range 60_000 {
		c.read(next, 1)
		next++
	}
	for sample := range uint64(slots) {
		if c.find(sample) >= 0 {
			t.Errorf("sample %d stays though nothing reads it", sample)
		}
	}
}

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
		if first := s.Slot(7); first != want {
			t.Fatalf("look %d is at slot %d, not %d", k, first, want)
		}
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
	if slot := few.Slot(7); slot != rule.Slot(7, 50) {
		t.Fatal(slot)
	}
	for _, want := range []uint64{90, 90, 3, 3} {
		s := policy.NewSearch(rule, policy.Candidate{Sample: 999, Next: 5}, 0, 100, &pool)
		if slot := s.Slot(7); slot != want {
			t.Fatalf("slot %d, not %d", slot, want)
		}
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

// A cost is averaged over loads.
func TestCostIsAveraged(t *testing.T) {
	off := func(loads uint64) float64 { // mean deviation, in factors of e
		sum := 0.0
		for sample := range uint64(2000) {
			var c policy.Cost
			for load := range loads {
				c, _ = c.Loaded(noisy(5e6, 100*sample+load), policy.Spread(0), policy.Random(sample, load))
			}
			sum += math.Abs(math.Log(float64(c.Nanoseconds()) / 5e6))
		}
		return sum / 2000
	}
	one, two, eight := off(1), off(2), off(8)
	if one > 0.27 || two > 0.85*one || eight > 0.7*one {
		t.Error(one, two, eight)
	}
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

// Differences that are only noise are not believed, real ones are, with stalls too.
func TestTrust(t *testing.T) {
	if policy.Spread(0).Trust() != 256 {
		t.Error("before anything is known, differences are believed")
	}
	for _, stalls := range []bool{false, true} {
		equal, lognormal := settle(0, stalls).Trust(), settle(0.6, stalls).Trust()
		if equal > 90 || lognormal < 160 {
			t.Errorf("stalls %v: trust %d for equal costs, %d for lognormal ones", stalls, equal, lognormal)
		}
	}
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

// The first loads of a cache are far too long: workers import modules, and one is stopped. Later ones are measured
// rightly all the same, and those of the first loads go first.
func TestSlowBeginning(t *testing.T) {
	var spread policy.Spread
	first := make([]policy.Cost, 8)
	for k := range first {
		first[k], spread = policy.Cost(0).Loaded(noisy(2e9, uint64(k)), spread, 0)
	}
	for k := range uint64(100) {
		_, spread = policy.Cost(0).Loaded(noisy(5e6, 100+k), spread, policy.Random(k, 0))
	}
	if stalled, _ := policy.Cost(0).Loaded(3600e9, spread, 0); !stalled.Doubtful(spread) {
		t.Error("after 100 loads of 5 ms, one of an hour is believed")
	}
	for k := range uint64(2000) {
		_, spread = policy.Cost(0).Loaded(noisy(5e6, 200+k), spread, policy.Random(k, 0))
	}
	for k, c := range first {
		if !c.Doubtful(spread) {
			t.Errorf("first load %d, measured as %d ms, is believed", k, c.Nanoseconds()/1e6)
		}
	}
}

// One of the first loads of a cache is measured as far too short. Those after it count as what they took.
func TestShortMeasurement(t *testing.T) {
	for _, short := range []int{0, 1, 5, 14} {
		var spread policy.Spread
		costs := make([]policy.Cost, 200)
		for k := range costs {
			ns := noisy(6e6, uint64(k))
			if k == short {
				ns = 2000
			}
			costs[k], spread = costs[k].Loaded(ns, spread, policy.Random(5, uint64(k)))
		}
		for k, cost := range costs {
			if ms := float64(cost.Believed(spread).Nanoseconds()) / 1e6; k != short && (ms < 2 || ms > 18) {
				t.Errorf("load %d is too short: load %d of about 6 ms counts as %g ms", short, k, ms)
			}
		}
	}
}

// The machine is slow for a while, so what is loaded then looks costly: nothing moves for that.
func TestSlowPeriods(t *testing.T) {
	const slots, samples = 500, 1000
	c := newCacheOf(policy.KindCost, slots, 1)
	loads := uint64(0)
	for epoch := range uint64(8) {
		moved := 0
		for k := range uint64(samples) {
			sample := (k*389 + epoch*157) % samples
			loads++
			ns := noisy(5e6, loads)
			if loads/100%3 == 0 {
				ns *= 3
			}
			if _, victim, _ := c.read(sample, ns); victim >= 0 {
				moved++
			}
		}
		if epoch >= 2 && moved > slots/100 {
			t.Errorf("epoch %d moves %d of %d slots", epoch+1, moved, slots)
		}
	}
}
