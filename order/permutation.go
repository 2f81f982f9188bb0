package order

import (
	"math"
	"math/bits"
)

// rounds is the number of rounds of a permutation. Tests tell 6 rounds from a true shuffle of some
// hundred samples, and cannot tell 8; two more are a margin.
const rounds = 10

// smallest is the least n that uses rounds. A smaller permutation shuffles a table, which is exact.
const smallest = 257

// permutation is a keyed permutation of 0..n-1: docs/spec/order.md. It is a value without pointers,
// and safe for concurrent use.
type permutation struct {
	n, a, b uint64
	inverse float64 // 1/b, which replaces a division
	keys    [rounds]uint64
	table   [smallest - 1]uint8 // for n < smallest: index of a position
	places  [smallest - 1]uint8 // and position of an index
}

// Uses of keys: keys of different uses, or of different parts of one use, are independent.
const (
	ofSamples = iota // all samples
	ofBlocks
	ofWindow // samples of one window; the part is its number
	ofDraws
)

// golden is 2^64 divided by the golden ratio, odd.
const golden = 0x9E3779B97F4A7C15

// mix is the finalizer of splitmix64 (Steele, Lea, Flood 2014; constants of Stafford's variant 13).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// below maps 64 random bits to a number in 0..n-1.
func below(x, n uint64) uint64 {
	high, _ := bits.Mul64(x, n)
	return high
}

// chain makes a key from a seed and the words that say its use.
func chain(seed uint64, words ...uint64) uint64 {
	key := mix(seed + golden)
	for _, word := range words {
		key = mix(key ^ word + golden)
	}
	return key
}

// newPermutation keys a permutation of n, 1 to 2^40.
func newPermutation(n, seed, epoch, use, part uint64) (p permutation) {
	key := chain(seed, epoch, use, part, n)
	p.n = n
	if n < smallest {
		for k := range p.table {
			p.table[k] = uint8(k)
		}
		for k := n; k > 1; k-- {
			other := below(mix(key+k*golden), k)
			p.table[k-1], p.table[other] = p.table[other], p.table[k-1]
		}
		for k := range n {
			p.places[p.table[k]] = uint8(k)
		}
		return p
	}
	p.a = uint64(math.Sqrt(float64(n)))
	for p.a*p.a < n {
		p.a++
	}
	p.b = (n + p.a - 1) / p.a
	p.inverse = 1 / float64(p.b)
	for k := range p.keys {
		p.keys[k] = mix(key + uint64(k+1)*golden)
	}
	return p
}

// split returns x / b and x % b. x is below 2^41, and so exact as a float; the quotient is off by
// at most one.
func (p *permutation) split(x uint64) (left, right uint64) {
	left = uint64(float64(x) * p.inverse)
	right = x - left*p.b
	if int64(right) < 0 {
		return left - 1, right + p.b
	}
	if right >= p.b {
		return left + 1, right - p.b
	}
	return left, right
}

// at returns the index at a position.
func (p *permutation) at(position uint64) uint64 {
	if p.n < smallest {
		return uint64(p.table[position])
	}
	for x := position; ; {
		left, right := p.split(x)
		for k := 0; k < rounds; k += 2 {
			left += below(mix(right^p.keys[k]), p.a)
			if left >= p.a {
				left -= p.a
			}
			right += below(mix(left^p.keys[k+1]), p.b)
			if right >= p.b {
				right -= p.b
			}
		}
		if x = left*p.b + right; x < p.n {
			return x
		}
	}
}

// position returns the position of an index.
func (p *permutation) position(index uint64) uint64 {
	if p.n < smallest {
		return uint64(p.places[index])
	}
	for x := index; ; {
		left, right := p.split(x)
		for k := rounds - 2; k >= 0; k -= 2 {
			if sub := below(mix(left^p.keys[k+1]), p.b); right >= sub {
				right -= sub
			} else {
				right += p.b - sub
			}
			if sub := below(mix(right^p.keys[k]), p.a); left >= sub {
				left -= sub
			} else {
				left += p.a - sub
			}
		}
		if x = left*p.b + right; x < p.n {
			return x
		}
	}
}
