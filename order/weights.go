package order

import (
	"fmt"
	"math"
	"math/bits"
)

// Weights say how often samples are drawn. They are an alias table of 16 bytes a sample, the only
// part of an order that grows with the dataset. One table serves all epochs. It is safe for
// concurrent use.
type Weights struct {
	buckets []bucket
}

// bucket is an entry of an alias table. It gives its own sample or the alias.
type bucket struct {
	threshold uint64 // threshold of the coin: below it the bucket gives its own sample
	alias     uint64
}

// NewWeights makes the table from one weight a sample. Weights are finite and not below 0, and at
// least one is above 0. A sample of weight 0 is never drawn. It takes 0.1 us a sample and does not
// keep the slice. It returns ErrInvalid.
func NewWeights(weights []float64) (*Weights, error) {
	n := uint64(len(weights))
	if n < 1 || n > MaxSamples {
		return nil, fmt.Errorf("%w: %d weights are not in 1..%d, one for each sample", ErrInvalid, n, uint64(MaxSamples))
	}
	greatest := 0.0
	for k, w := range weights {
		if !(w >= 0) || math.IsInf(w, 1) { // NaN too
			return nil, fmt.Errorf("%w: weight %d is %g; weights are finite and not below 0", ErrInvalid, k, w)
		}
		greatest = max(greatest, w)
	}
	if greatest == 0 {
		return nil, fmt.Errorf("%w: all %d weights are 0; one sample must have more", ErrInvalid, n)
	}
	_, exponent := math.Frexp(greatest)
	mass := func(k uint64) wide { return wideOf(wholeWeight(weights[k], exponent), n) }
	var capacity wide // capacity of a bucket
	for _, w := range weights {
		capacity = capacity.plus(wide{low: wholeWeight(w, exponent)})
	}
	next := func(k uint64, heavy bool) uint64 { // from k on; n: none
		for k < n && capacity.less(mass(k)) != heavy {
			k++
		}
		return k
	}
	t := &Weights{buckets: make([]bucket, n)}
	for k := range t.buckets {
		t.buckets[k] = bucket{math.MaxUint64, uint64(k)}
	}
	light, heavy := next(0, false), next(0, true)
	if heavy == n { // all weights are equal
		return t, nil
	}
	for left := mass(heavy); ; {
		if capacity.less(left) {
			m := mass(light)
			t.buckets[light] = bucket{m.share(capacity), heavy}
			left = left.minus(capacity.minus(m))
			light = next(light+1, false)
			continue
		}
		k := next(heavy+1, true)
		if k == n { // the rest fills one bucket
			return t, nil
		}
		t.buckets[heavy] = bucket{left.share(capacity), k}
		left = mass(k).minus(capacity.minus(left))
		heavy = k
	}
}

// Samples returns the number of weights.
func (t *Weights) Samples() uint64 { return uint64(len(t.buckets)) }

// wholeWeight returns w * 2^(62-exponent), rounded down.
func wholeWeight(w float64, exponent int) uint64 {
	fraction, own := math.Frexp(w)
	mantissa := uint64(fraction * (1 << 53))
	if shift := 9 + own - exponent; shift >= 0 {
		return mantissa << shift
	} else {
		return mantissa >> -shift
	}
}

// wide is an unsigned number of 128 bits.
type wide struct{ high, low uint64 }

func wideOf(a, b uint64) (w wide) {
	w.high, w.low = bits.Mul64(a, b)
	return w
}

func (w wide) plus(v wide) wide {
	low, carry := bits.Add64(w.low, v.low, 0)
	return wide{w.high + v.high + carry, low}
}

func (w wide) minus(v wide) wide {
	low, borrow := bits.Sub64(w.low, v.low, 0)
	return wide{w.high - v.high - borrow, low}
}

func (w wide) less(v wide) bool { return w.high < v.high || w.high == v.high && w.low < v.low }

// normal shifts w by as many bits as make capacity a number of 64 bits.
func (w wide) normal(capacity wide) uint64 {
	if capacity.high == 0 {
		return w.low << bits.LeadingZeros64(capacity.low)
	}
	shift := bits.Len64(capacity.high)
	return w.high<<(64-shift) | w.low>>shift
}

// share returns w as a share of capacity, in units of 1 / 2^64.
func (w wide) share(capacity wide) uint64 {
	own, all := w.normal(capacity), capacity.normal(capacity)
	if own >= all {
		return math.MaxUint64
	}
	quotient, _ := bits.Div64(own, 0, all)
	return quotient
}

// WeightedOrder draws samples with replacement, in proportion to their weights.
type WeightedOrder struct {
	Weights *Weights
	Seed    uint64
	// Draws is the number of positions of an epoch, at most MaxSamples; 0: one for each sample. It
	// does not change which sample a position has.
	Draws uint64
}

// Epoch returns the order of an epoch. It returns ErrInvalid.
func (o WeightedOrder) Epoch(number uint64) (*Epoch, error) {
	if o.Weights == nil || len(o.Weights.buckets) == 0 {
		return nil, fmt.Errorf("%w: no weights; NewWeights makes them", ErrInvalid)
	}
	if o.Draws > MaxSamples {
		return nil, fmt.Errorf("%w: %d draws are more than %d", ErrInvalid, o.Draws, uint64(MaxSamples))
	}
	n := o.Weights.Samples()
	e := &Epoch{Order: Order{Samples: n, Seed: o.Seed}, number: number, positions: o.Draws,
		draws: &draws{o.Weights.buckets, chain(o.Seed, number, ofDraws, 0, n)}}
	if o.Draws == 0 {
		e.positions = n
	}
	return e, nil
}

// draws are the draws of one epoch.
type draws struct {
	buckets []bucket
	key     uint64
}

func (d *draws) at(position uint64) uint64 {
	k := below(mix(d.key+(2*position+1)*golden), uint64(len(d.buckets)))
	if b := &d.buckets[k]; mix(d.key+(2*position+2)*golden) >= b.threshold {
		return b.alias
	}
	return k
}
