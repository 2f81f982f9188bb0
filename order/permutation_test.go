package order

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// split must be exact for each x in its range.
func TestSplit(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		n := smallest + random.Uint64N(1<<(9+random.Uint64N(32))-256)
		p := newPermutation(n, 0, 0, 0, 0)
		for range 200 {
			x := random.Uint64N(p.a * p.b)
			if random.Uint64N(2) == 0 { // around a multiple
				x = min(x/p.b*p.b+random.Uint64N(3), p.a*p.b-1)
				x -= min(x, 1)
			}
			if left, right := p.split(x); left != x/p.b || right != x%p.b {
				t.Fatalf("n = %d: %d is %d and %d, want %d and %d", n, x, left, right, x/p.b, x%p.b)
			}
		}
	}
}

// deviation returns how far the chi-square of counts is from its mean, in standard deviations.
func deviation(counts []float64, freedom float64) float64 {
	total, chi := 0.0, 0.0
	for _, c := range counts {
		total += c
	}
	expected := total / float64(len(counts))
	for _, c := range counts {
		chi += (c - expected) * (c - expected) / expected
	}
	return (chi - freedom) / math.Sqrt(2*freedom)
}

// Ensure that a permutation cannot be told from a true shuffle by which index stands at which position, and by the step
// to the next one. With four rounds instead of ten the deviation is 400. Keys are fixed, so the result never varies.
func TestPermutationIsLikeAShuffle(t *testing.T) {
	for _, n := range []uint64{9, 64, 257, 289} {
		places, steps := make([]float64, n*n), make([]float64, n-1)
		for trial := range 1_500_000 / n {
			p := newPermutation(n, 99, trial, ofSamples, 0)
			before := p.at(n - 1)
			for k := range n {
				at := p.at(k)
				places[k*n+at]++
				if k > 0 {
					steps[(at+n-before)%n-1]++ // 1..n-1, all equally likely
				}
				before = at
			}
		}
		m := float64(n - 1) // sums of rows and columns are fixed
		if place, step := deviation(places, m*m), deviation(steps, m-1); math.Abs(place) > 5 || math.Abs(step) > 5 {
			t.Errorf("%d samples: the places are off by %.1f standard deviations, the steps by %.1f", n, place, step)
		}
	}
}

func BenchmarkAt(b *testing.B) {
	for _, n := range []uint64{1281167, 1<<30 + 1, 1e9} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPermutation(n, 1, 2, ofSamples, 0)
			x, k := uint64(0), uint64(0)
			for b.Loop() {
				x ^= p.at(k)
				if k++; k == n {
					k = 0
				}
			}
		})
	}
}
