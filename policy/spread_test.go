package policy

import "testing"

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
	if s.Trust() != 0 {
		t.Errorf("trust %d in costs that are noise", s.Trust())
	}
}
