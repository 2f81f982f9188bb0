package policy

import "math/bits"

// Rule is a policy that may give the slot of one sample to another. All functions are pure, so Go, C
// and the simulator decide alike: docs/spec/policies.md. Values are immutable.
//
// All numbers come from one shared word, the hand. Each look at a slot takes the next number of it,
// by fetch-and-add. now is any value that the hand had not long ago.
type Rule interface {
	// Looks is the most slots that one set looks at.
	Looks() int
	// Slot is the slot to look at for a number of the hand: below slots, which is at least 1.
	Slot(number, slots uint64) uint64
	// Worth says how much a sample deserves its slot. The search ends at a worth of 0, and otherwise
	// chooses the least. Kept samples are never chosen.
	Worth(c Candidate, now uint64, spread Spread) uint32
	// Yields says whether the victim goes for the newcomer.
	Yields(newcomer, victim Candidate, spread Spread) bool
	// Looked is the reference byte that a look leaves behind if the sample stays.
	Looked(reference uint8, number uint64) uint8
	// Placed is the reference byte of a sample that has just got its slot.
	Placed(now uint64) uint8
}

// Candidate is what a set knows about the sample of a slot that it looks at, or about its own.
type Candidate struct {
	Sample    uint64
	Size      uint64 // bytes; any number if all samples have the same size
	Cost      Cost
	Reference uint8 // reference of the slot
	// Next is how many reads, of all jobs, come until the sample is read: 1 if it is the next one. Unread:
	// no job reads it again. 0: the program does not know; so it may leave it out.
	Next uint64
}

// Kept is the worth of a sample that keeps its slot.
const Kept = 1<<32 - 1

// Search is one search for a slot in a full cache. The caller takes a number of the hand for each
// look, until Done, and then asks for the victim.
type Search struct {
	rule     Rule
	newcomer Candidate
	spread   Spread
	slots    uint64
	pool     *Pool
	begun    bool
	left     int
	victim   Candidate
	slot     uint64
	worth    uint32
}

// NewSearch begins a search for a slot of a sample. Only the policy cost needs the spread, and only planned a pool,
// of this client: the search changes it.
func NewSearch(rule Rule, newcomer Candidate, spread Spread, slots uint64, pool *Pool) Search {
	s := Search{rule: rule, newcomer: newcomer, spread: spread, slots: slots, pool: pool, left: rule.Looks(), worth: Kept}
	if slots == 0 {
		s.left = 0
	}
	return s
}

// Done says that the search needs no further look.
func (s *Search) Done() bool { return s.left == 0 }

// Slot is the slot to look at for a number of the hand. It is called once for each look.
func (s *Search) Slot(number uint64) uint64 {
	if s.pool != nil && !s.begun {
		s.begun = true
		if slot, ok := s.pool.take(); ok && slot < s.slots {
			return slot
		}
	}
	return s.rule.Slot(number, s.slots)
}

// Skip counts a look at a slot whose sample cannot be taken now, for example because it is being
// filled.
func (s *Search) Skip() { s.left-- }

// Look considers the sample that holds the slot of a number. It returns the reference byte to store
// if the sample stays; a caller stores it only if it differs.
func (s *Search) Look(number, slot uint64, c Candidate) uint8 {
	s.left--
	if c.Sample == s.newcomer.Sample {
		return c.Reference
	}
	worth := s.rule.Worth(c, number, s.spread)
	if worth < s.worth {
		s.lose()
		s.victim, s.slot, s.worth = c, slot, worth
	} else if s.pool != nil && worth < Kept {
		s.pool.add(slot, c.Next)
	}
	if worth == 0 {
		s.left = 0
		return c.Reference
	}
	return s.rule.Looked(c.Reference, number)
}

// lose moves the victim into the pool.
func (s *Search) lose() {
	if s.pool != nil && s.worth < Kept {
		s.pool.add(s.slot, s.victim.Next)
	}
}

// Soon returns the Next below which a further sample neither goes nor gets into the pool, for the policy planned: 0 if
// any may. So a program need not find out exactly when such a sample is read.
func (s *Search) Soon() uint64 {
	if s.worth == Kept || s.pool == nil {
		return 0
	}
	return min(s.victim.Next, s.pool.least())
}

// Victim ends the search. It returns the sample that goes and its slot; false: the newcomer gets no slot.
func (s *Search) Victim() (victim Candidate, slot uint64, ok bool) {
	if ok = s.worth < Kept && s.rule.Yields(s.newcomer, s.victim, s.spread); !ok {
		s.lose()
	}
	return s.victim, s.slot, ok
}

// looks is the most slots that one set looks at. It would do with one for some rules, but the sample
// of a slot may be in use by another set.
const looks = 5

// golden is 2^64 divided by the golden ratio, odd.
const golden = 0x9E3779B97F4A7C15

// Random returns the random number of a counter: splitmix64.
func Random(seed, counter uint64) uint64 {
	x := seed + (counter+1)*golden
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// below maps 64 random bits to a number in 0..n-1.
func below(x, n uint64) uint64 {
	high, _ := bits.Mul64(x, n)
	return high
}

// sampled looks at random slots.
type sampled struct{ seed uint64 }

func (s sampled) Slot(number, slots uint64) uint64 { return RandomSlot(s.seed, number, slots) }

// RandomSlot is the slot at which the rules that sample look for a number of the hand.
func RandomSlot(seed, number, slots uint64) uint64 { return below(Random(seed, number), slots) }

// swept looks at one slot after the other.
type swept struct{}

func (swept) Slot(number, slots uint64) uint64 { return number % slots }

// unreferenced leaves the reference byte as it is.
type unreferenced struct{}

func (unreferenced) Looked(reference uint8, _ uint64) uint8 { return reference }
func (unreferenced) Placed(uint64) uint8                    { return 0 }

// always gives any newcomer the slot.
type always struct{}

func (always) Yields(_, _ Candidate, _ Spread) bool { return true }
