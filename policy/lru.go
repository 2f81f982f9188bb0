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

func newLRU(slots, seed uint64) Rule {
	return &lru{sampled: sampled{seed}, shift: max(bits.Len64(slots*looks/8)-1, 0)}
}

func (l *lru) tick(now uint64) uint8 { return uint8(now >> l.shift) }

// TickShift returns by how many bits a rule shifts the hand to the time of a hit; -1: hits leave no time.
func TickShift(r Rule) int {
	if l, ok := r.(*lru); ok {
		return l.shift
	}
	return -1
}

func (*lru) Looks() int { return looks }

// Worth takes a byte that is a few ticks ahead for a fresh one: the hand has moved on since the look
// took its number.
func (l *lru) Worth(c *Candidate, now uint64) uint32 {
	age := l.tick(now) - c.Reference
	if age > 250 {
		age = 0
	}
	return 256 - uint32(age)
}

func (*lru) Looked(reference uint8, _ uint64) uint8 { return reference }

func (l *lru) Hit(_ uint8, now, _ uint64) uint8 { return l.tick(now) }

func (l *lru) Placed(now uint64) uint8 { return l.tick(now) }
