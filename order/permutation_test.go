package order

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

var sizes = []uint64{1, 2, 3, 4, 5, 7, 10, 63, 64, 255, 256, 257, 258, 289, 290, 1000, 1023, 4099, 65536, 65537, 100003}

// Ensure that each index comes once, and that position is the inverse of at.
func TestPermutationIsOne(t *testing.T) {
	for _, n := range sizes {
		p := newPermutation(n, 1, 2, ofSamples, 0)
		seen := make([]bool, n)
		for k := range n {
			i := p.at(k)
			if i >= n || seen[i] || p.position(i) != k {
				t.Fatalf("n = %d: position %d has index %d, seen %v, whose position is %d", n, k, i, i < n && seen[i],
					p.position(i))
			}
			seen[i] = true
		}
	}
	for _, n := range []uint64{1281167, 1 << 30, 1<<30 + 1, 1e9, 1<<40 - 1, 1 << 40} {
		p := newPermutation(n, 1, 2, ofSamples, 0)
		random := rand.New(rand.NewPCG(1, 2))
		for range 100000 {
			k := random.Uint64N(n)
			if i := p.at(k); i >= n || p.position(i) != k {
				t.Fatalf("n = %d: position %d has index %d, whose position is %d", n, k, i, p.position(i))
			}
		}
		for _, k := range []uint64{0, 1, n - 2, n - 1} {
			if i := p.at(k); i >= n || p.position(i) != k {
				t.Fatalf("n = %d: position %d has index %d, whose position is %d", n, k, i, p.position(i))
			}
		}
	}
}

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

// shuffler is a way to shuffle n for each of many trials. at returns the index at a position.
type shuffler func(n uint64, trial uint64) (at func(k uint64) uint64)

func keyed(n, trial uint64) func(k uint64) uint64 {
	p := newPermutation(n, 99, trial, ofSamples, 0)
	return p.at
}

func trueShuffle(n, trial uint64) func(k uint64) uint64 {
	order := rand.New(rand.NewPCG(99, trial)).Perm(int(n))
	return func(k uint64) uint64 { return uint64(order[k]) }
}

// statistics judge a shuffle. Each counts a property over many trials in bins with equal
// expectations. Its value is the distance of chi-square from its mean, in standard deviations.
var statistics = []struct {
	name  string
	bins  func(n uint64) uint64
	count func(n uint64, at func(uint64) uint64, add func(bin uint64))
}{
	{"the index at a position", func(n uint64) uint64 { return divisor(n, 64) * divisor(n, 64) },
		func(n uint64, at func(uint64) uint64, add func(uint64)) {
			m := divisor(n, 64)
			for k := range n {
				add(k*m/n*m + at(k)*m/n)
			}
		}},
	{"the step from one to the next", func(n uint64) uint64 { return divisor(n-1, 400) },
		func(n uint64, at func(uint64) uint64, add func(uint64)) {
			m := divisor(n-1, 400)
			for k := range n - 1 {
				step := (at(k+1) + n - at(k)) % n // 1..n-1, all equally likely
				add((step - 1) * m / (n - 1))
			}
		}},
	{"the step over one", func(n uint64) uint64 { return divisor(n-1, 400) },
		func(n uint64, at func(uint64) uint64, add func(uint64)) {
			m := divisor(n-1, 400)
			for k := range n - 2 {
				add((((at(k+2) + n - at(k)) % n) - 1) * m / (n - 1))
			}
		}},
	{"the order of three", func(uint64) uint64 { return 6 }, func(n uint64, at func(uint64) uint64, add func(uint64)) {
		for k := uint64(0); k+2 < n; k += 3 {
			a, b, c := at(k), at(k+1), at(k+2)
			bin := uint64(0)
			for _, smaller := range []bool{a < b, b < c, a < c} {
				bin *= 2
				if smaller {
					bin++
				}
			}
			add([8]uint64{0: 0, 2: 1, 3: 2, 4: 3, 5: 4, 7: 5}[bin]) // 1 and 6 are impossible
		}
	}},
}

// divisor is the largest divisor of n up to most, so that all bins are of one size.
func divisor(n, most uint64) uint64 {
	for d := min(n, most); ; d-- {
		if n%d == 0 {
			return d
		}
	}
}

// deviations shuffles n many times, and returns for each statistic how far its chi-square is off.
// It leaves out bins of unequal size.
func deviations(n, trials uint64, shuffle shuffler) []float64 {
	counts := make([][]float64, len(statistics))
	for s := range statistics {
		counts[s] = make([]float64, statistics[s].bins(n))
	}
	total := make([]float64, len(statistics))
	order := make([]uint64, n) // computed once for all statistics
	for trial := range trials {
		from := shuffle(n, trial)
		for k := range order {
			order[k] = from(uint64(k))
		}
		at := func(k uint64) uint64 { return order[k] }
		for s := range statistics {
			statistics[s].count(n, at, func(bin uint64) { counts[s][bin]++; total[s]++ })
		}
	}
	result := make([]float64, len(statistics))
	for s := range statistics {
		bins := float64(len(counts[s]))
		if bins < 2 {
			continue
		}
		expected, chi := total[s]/bins, 0.0
		for _, c := range counts[s] {
			chi += (c - expected) * (c - expected) / expected
		}
		freedom := bins - 1
		if s == 0 {
			m := math.Sqrt(bins)
			freedom = (m - 1) * (m - 1) // sums of rows and columns are fixed
		}
		result[s] = (chi - freedom) / math.Sqrt(2*freedom)
	}
	return result
}

// stepping is not a shuffle: neighbours stay neighbours.
func stepping(n, trial uint64) func(k uint64) uint64 {
	start := mix(trial) % n
	return func(k uint64) uint64 { return (start + k) % n }
}

// Ensure that a permutation cannot be told from a true shuffle, for few samples, where each
// statistic is sharp, and that the statistics detect a bad one. With four rounds instead of ten the
// deviation is 400, with six it is 4. About one in ten thousand values of a true shuffle exceeds
// the limit. Keys are fixed, so the result never varies.
func TestPermutationIsLikeAShuffle(t *testing.T) {
	const limit = 5
	for _, n := range []uint64{9, 64, 256, 257, 261, 289, 513, 1025} {
		// The true shuffle only shows that the statistics are right.
		ours, theirs := deviations(n, 1_500_000/n, keyed), deviations(n, 150_000/n, trueShuffle)
		for s := range statistics {
			if math.Abs(ours[s]) > limit || math.Abs(theirs[s]) > limit {
				t.Errorf("%d samples, %s: off by %.1f standard deviations; a true shuffle by %.1f", n, statistics[s].name,
					ours[s], theirs[s])
			}
		}
		if n > 9 && deviations(n, 1000, stepping)[1] < 100 {
			t.Errorf("%d samples: what is no shuffle is not seen", n)
		}
	}
}

// Ensure that permutations of neighbouring epochs, seeds and parts are independent: one after the
// inverse of the other is a shuffle too.
func TestPermutationsHaveNothingInCommon(t *testing.T) {
	after := func(p, q permutation) func(k uint64) uint64 {
		return func(k uint64) uint64 { return q.at(p.position(k)) }
	}
	for name, pair := range map[string]shuffler{
		"epochs": func(n, trial uint64) func(uint64) uint64 {
			return after(newPermutation(n, 3, trial, ofSamples, 0), newPermutation(n, 3, trial+1, ofSamples, 0))
		},
		"seeds": func(n, trial uint64) func(uint64) uint64 {
			return after(newPermutation(n, trial, 3, ofSamples, 0), newPermutation(n, trial+1, 3, ofSamples, 0))
		},
		"windows": func(n, trial uint64) func(uint64) uint64 {
			return after(newPermutation(n, 3, 3, ofWindow, trial), newPermutation(n, 3, 3, ofWindow, trial+1))
		},
		"blocks and windows": func(n, trial uint64) func(uint64) uint64 {
			return after(newPermutation(n, 3, trial, ofBlocks, 0), newPermutation(n, 3, trial, ofWindow, 0))
		},
		"seed and epoch": func(n, trial uint64) func(uint64) uint64 {
			return after(newPermutation(n, trial, trial+1, ofSamples, 0), newPermutation(n, trial+1, trial, ofSamples, 0))
		},
	} {
		for _, n := range []uint64{37, 256, 261} {
			for s, off := range deviations(n, 200_000/n, pair) {
				if math.Abs(off) > 5 {
					t.Errorf("%s of %d samples, %s: off by %.1f standard deviations", name, n, statistics[s].name, off)
				}
			}
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
