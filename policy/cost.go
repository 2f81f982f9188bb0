package policy

import "math/bits"

// Cost is what a sample costs to load, in one byte: a level from 1 to 127 in the upper 7 bits, and in
// the lowest bit whether a second load has confirmed it. 0: unknown. Level l stands for
// 1.024 us * 2^(l/4): 1.2 us to 62 minutes in steps of 19 %. So a greater byte is a higher cost.
type Cost uint8

const (
	octave    = 256         // units of a fine logarithm in a factor of 2
	levelUnit = octave / 4  // fine units of a level
	levelZero = 10 * octave // 2^10 ns
	maxLevel  = 127
	maxFine   = levelZero + maxLevel*levelUnit
)

// fine returns 256 * log2(n), rounded; off by at most 3. 0 has the logarithm of 1.
func fine(n uint64) int {
	if n < 2 {
		return 0
	}
	exponent := bits.Len64(n) - 1
	f := int(n << (63 - exponent) << 1 >> 56) // 8 bits of the mantissa after its first
	return exponent*octave + f + f*(octave-f)*87>>16
}

// fine returns the logarithm of the cost in nanoseconds.
func (c Cost) fine() int { return levelZero + int(c>>1)*levelUnit }

// Confirmed says whether the cost is an average over two loads or more.
func (c Cost) Confirmed() bool { return c&1 != 0 }

// costOf rounds a logarithm to a level. draw makes the rounding right on average.
func costOf(x int, draw uint64, confirmed Cost) Cost {
	level := (x - levelZero + int(draw>>58)) / levelUnit
	return Cost(min(max(level, 1), maxLevel))<<1 | confirmed
}

// Nanoseconds returns about what the cost stands for; 0: unknown.
func (c Cost) Nanoseconds() uint64 {
	level := c >> 1
	if level == 0 {
		return 0
	}
	return [4]uint64{1024, 1218, 1448, 1722}[level&3] << (level >> 2)
}

// Loaded returns the cost of a sample and the spread of a cache after one more load. draw is random.
//
// The second load counts as much as the first, later ones a quarter. A load far above all others, for
// example of a process that was stopped, is Doubtful until the next load confirms it.
func (c Cost) Loaded(nanoseconds uint64, spread Spread, draw uint64) (Cost, Spread) {
	x := min(max(fine(nanoseconds), levelZero+levelUnit), maxFine)
	old := c.fine()
	doubtful, far := c.Doubtful(spread), spread != 0 && x > spread.far()+levelUnit // which no rounding hides
	known := c != 0 && !doubtful
	spread = spread.observe(x, old, c == 0, known, c.Confirmed())
	if !far && (!known || old < spread.tail()) && spread.part(2) >= beginning {
		x = min(x, spread.tail())
	}
	switch surprising := far && known && old < spread.tail(); {
	case surprising && c.Confirmed(): // the average stays, but another load has to confirm it
		return c &^ 1, spread
	case surprising, !known && !(far && doubtful):
		return costOf(x, draw, 0), spread
	case c.Confirmed():
		return costOf((3*old+x)/4, draw, 1), spread
	}
	return costOf((old+x)/2, draw, 1), spread
}

// Doubtful says that one load of the sample took far longer than those of others, and that no other load
// has confirmed it. It may have been stopped. So nothing is known about its cost.
func (c Cost) Doubtful(spread Spread) bool {
	return c != 0 && !c.Confirmed() && spread != 0 && c.fine() > spread.far()
}

// Believed is the cost that a cache shows: 0 if it is doubtful.
func (c Cost) Believed(spread Spread) Cost {
	if c.Doubtful(spread) {
		return 0
	}
	return c
}

// capped says that a cost of one load is above the 99th percentile, which may have fallen since that load: the first
// loads of a cache know none.
func (c Cost) capped(tail int) bool { return !c.Confirmed() && 0 < tail && tail < c.fine() }

// Spread is what all loads of a cache have in common, in one shared word: how far costs of different
// samples lie apart, how far two measurements of one sample do, and the 99th percentile. 0: nothing
// is known. Clients load the word, call Loaded and store it. An update that is lost does no harm.
//
// From bit 0 on, 16 bits each: the last measurement; between: the mean distance of two measurements
// of different samples; within: that of two of one sample, or, below 16, the number of measurements
// (15: or more), none of a sample that was loaded before; tail: the 99th percentile of first loads.
type Spread uint64

// SpreadOf returns the spread in the shared word. A word that no measurements make, such as one that a stray write
// has changed, counts as 0.
func SpreadOf(word uint64) Spread {
	s := Spread(word)
	if last := s.part(0); last < levelZero+levelUnit || last > maxFine || s.part(2) == 0 || s.part(3) > maxTail {
		return 0
	}
	return s
}

const (
	distanceUnit = 32 // between and within, in a fine unit
	decay        = 7  // 128 measurements
	tailUnit     = 2  // tail, in a fine unit
	beginning    = 15 // measurements: the first loads of workers also open files and import modules
	maxDistance  = 8*octave - 1
	maxTail      = (maxFine + 2*octave) * tailUnit
)

func (s Spread) part(k int) int { return int(uint16(s >> (16 * k))) }

func (s Spread) tail() int { return s.part(3) / tailUnit }

// far is far above the 99th percentile, and the farther the more costs differ. If a load takes longer, the
// sample is very costly, or the process was stopped.
func (s Spread) far() int { return s.tail() + 2*s.part(1)/distanceUnit + levelUnit }

func distance(x, y int) int { return min(max(x-y, y-x), maxDistance) }

// follow moves a mean towards a distance.
func follow(mean, distance int) int {
	return mean - mean>>decay + distance*distanceUnit>>decay
}

func (s Spread) observe(x, old int, first, known, confirmed bool) Spread {
	last, between, within, tail := s.part(0), s.part(1), s.part(2), s.part(3)
	switch {
	case last == 0:
		within, tail = 1, (x+2*octave)*tailUnit
	case within < beginning: // a measurement that is far too short or too long moves the percentile by one octave
		between = max(between+(distance(x, last)*distanceUnit-between)/within, 1) // the mean of all
		near := min(max(tail, x*tailUnit), (x+2*octave)*tailUnit)
		within, tail = within+1, min(max(near, tail-octave*tailUnit), tail+octave*tailUnit)
	default:
		between = follow(between, distance(x, last))
		switch { // what is loaded again is the cheap part of the samples, so it does not count
		case !first:
		case x*tailUnit > tail:
			tail = min(tail+99, maxTail)
		default:
			tail--
		}
	}
	if known {
		d := distance(x, old)
		if confirmed { // the old cost is an average, which is nearer to the true one
			d = min(d+d/4, maxDistance) // within has 16 bits
		}
		if within <= beginning { // no difference is believed until measurements say otherwise
			within = between
		}
		within = max(follow(within, d), beginning+1)
	}
	return Spread(x) | Spread(between)<<16 | Spread(within)<<32 | Spread(tail)<<48
}

// Within returns the mean distance of two measurements of one sample, as a part of a factor of 2; 0: no
// sample was loaded twice.
func (s Spread) Within() (part, of int) {
	if part = s.part(2); part <= beginning {
		part = 0
	}
	return part, distanceUnit * octave
}

// Trust says how much of the differences between costs is real and not noise, in 1/256. While no
// sample was loaded twice, it is 256.
func (s Spread) Trust() int {
	between, within := s.part(1), s.part(2)
	if within <= beginning {
		return 256
	}
	if within >= between {
		return 0
	}
	return 256 - within*within/((between*between+255)/256)
}

// costly keeps the samples that cost most, per byte where they differ in size. Of a few random ones
// the cheapest goes, if the new one costs 25 % more and this difference is not the noise of
// measurements. Samples of unknown cost neither go nor make others go. Those of doubtful cost go first.
type costly struct {
	sampled
	unreferenced
}

func newCostly(_, seed uint64) Rule { return &costly{sampled: sampled{seed}} }

func (*costly) Looks() int { return looks }

// Worth is least if the cost is doubtful.
func (*costly) Worth(c Candidate, _ uint64, spread Spread) uint32 {
	switch {
	case c.Cost == 0:
		return Kept
	case c.Cost.Doubtful(spread):
		return 1
	}
	return uint32(c.Density(spread) + 1<<16)
}

// Density is the logarithm of the cost of a byte, in 1/256 of a factor of 2. A cost of one load counts
// at most as the 99th percentile.
func (c Candidate) Density(spread Spread) int {
	cost := c.Cost.fine()
	if tail := spread.tail(); c.Cost.capped(tail) {
		cost = tail
	}
	return cost - fine(c.Size)
}

const (
	margin = 82  // 25 % in fine units
	mostly = 128 // trust when most of the differences are real
)

// Yields lets a sample of doubtful cost go for any other of known cost, except where all costs are alike.
func (*costly) Yields(newcomer, victim Candidate, spread Spread) bool {
	switch trust := spread.Trust(); {
	case newcomer.Cost.Believed(spread) == 0:
		return false
	case victim.Cost.Doubtful(spread):
		return trust > mostly
	default:
		return (newcomer.Density(spread)-victim.Density(spread))*trust > margin*256
	}
}
