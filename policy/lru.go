package policy

import "math/bits"

// lru takes the sample of a few random ones whose last hit is longest ago, as Redis does. The
// reference byte is the time of the last hit, in ticks of about 1/8 of the looks that go once over all
// slots.
type lru struct {
	sampled
	always
	shift int
}

func newLRU(slots, seed uint64) Rule { return &lru{sampled: sampled{seed}, shift: lruShift(slots)} }

func lruShift(slots uint64) int { return max(bits.Len64(slots*looks/8)-1, 0) }

func (l *lru) tick(now uint64) uint8 { return lruTick(now, l.shift) }

func lruTick(now uint64, shift int) uint8 { return uint8(now >> (shift & 63)) }

func (*lru) Looks() int { return looks }

// Worth takes a byte that is a few ticks ahead for a fresh one: the hand has moved on since the look
// took its number.
func (l *lru) Worth(c Candidate, now uint64, _ Spread) uint32 {
	age := l.tick(now) - c.Reference
	if age > 250 {
		age = 0
	}
	return 256 - uint32(age)
}

func (*lru) Looked(reference uint8, _ uint64) uint8 { return reference }

func (l *lru) Placed(now uint64) uint8 { return l.tick(now) }
