package policy

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Measurements that differ by the largest distance fill `within` to its 16 bits and no further: the
// next bits are the percentile's.
func TestSpreadKeepsItsParts(t *testing.T) {
	const tail = 5000
	s := Spread(1 | 1<<16 | 65535<<32 | tail<<48)
	for n := range 100 {
		s = s.observe(maxFine, levelZero+levelUnit, true, true, true)
		if within := s.part(2); within < 65000 || s.part(3) != tail+99*(n+1) {
			t.Fatalf("after %d measurements: within %d, tail %d", n+1, within, s.part(3))
		}
	}
	expect.Equal(t, s.Trust(), 0, "trust in costs that are noise")
}

// Ensure that a word which no measurements make counts as 0, and that any word gives costs and decisions.
func TestSpreadOfAnyWord(t *testing.T) {
	made := Spread(0)
	var cost Cost
	for n := range uint64(200) { // each word that measurements make is kept
		cost, made = Cost(n%7*30).Loaded(1000<<(n%23), made, Random(1, n))
		if SpreadOf(uint64(made)) != made || cost == 0 {
			t.Fatalf("measurement %d: %#x counts as %#x, cost %d", n, made, SpreadOf(uint64(made)), cost)
		}
	}
	rule := &costly{}
	parts := []uint64{0, 1, 15, 16, 2624, 10688, 22400, 65535}
	for a := range 8 * 8 * 8 * 8 {
		word := parts[a%8] | parts[a/8%8]<<16 | parts[a/64%8]<<32 | parts[a/512]<<48
		s := SpreadOf(word)
		if last, within, tail := parts[a%8], parts[a/64%8], parts[a/512]; s != 0 &&
			(s != Spread(word) || last < 2624 || last > 10688 || within == 0 || tail > 22400) {
			t.Errorf("%#x counts as %#x", word, s)
		}
		for _, known := range []Cost{0, 2, 3, 254, 255} {
			cost, after := known.Loaded(1e6, s, 0)
			rule.Worth(Candidate{Cost: cost, Size: 1}, 0, after)
			rule.Yields(Candidate{Cost: cost, Size: 1}, Candidate{Cost: known, Size: 1}, after)
			if SpreadOf(uint64(after)) != after {
				t.Errorf("a load after %#x makes %#x, which no measurements make", word, after)
			}
		}
	}
}
