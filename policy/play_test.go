package policy_test

import "github.com/stocached/stocached/policy"

// cacheOf is a cache in one process, without concurrency: what the protocol does with a policy.
type cacheOf struct {
	policy policy.Policy
	after  policy.Hits
	kind   policy.Kind
	slots  []held
	free   int
	hand   uint64
	hits   uint64
	spread policy.Spread
	costs  map[uint64]policy.Cost
	seed   uint64
	loads  uint64
	sizes  func(sample uint64) uint64 // nil: alike
	next   func(sample uint64) uint64 // nil: unknown
	// looked is called for each look.
	looked func(slot uint64)
	pool   *policy.Pool // of planned
}

type held struct {
	sample    uint64
	reference uint8
}

func newCacheOf(kind policy.Kind, slots, seed uint64) *cacheOf {
	c := &cacheOf{policy: kind.New(slots, seed), after: kind.Hits(slots), kind: kind, slots: make([]held, slots), seed: seed,
		costs: map[uint64]policy.Cost{}}
	if kind.NeedsPlans() {
		c.pool = &policy.Pool{}
	}
	return c
}

func (c *cacheOf) find(sample uint64) int {
	for k := range c.free {
		if c.slots[k].sample == sample {
			return k
		}
	}
	return -1
}

// hit counts a hit of the sample in a slot.
func (c *cacheOf) hit(slot int) {
	c.hits++
	s := &c.slots[slot]
	s.reference = c.after.After(s.reference, s.sample, c.hand)
}

// load measures a load.
func (c *cacheOf) load(sample, nanoseconds uint64) {
	c.loads++
	c.costs[sample], c.spread = c.costs[sample].Loaded(nanoseconds, c.spread, policy.Random(c.seed, c.loads))
}

func (c *cacheOf) candidate(sample uint64, reference uint8) policy.Candidate {
	o := policy.Candidate{Sample: sample, Size: 1, Cost: c.costs[sample], Reference: reference}
	if c.sizes != nil {
		o.Size = c.sizes(sample)
	}
	if c.next != nil {
		o.Next = c.next(sample)
	}
	return o
}

// turn is when a sample is read next, for tests: any time, unknown, or never.
func (c *cacheOf) turn(sample uint64) uint64 {
	n := (37*sample + c.hits + c.loads) % 50
	if n == 49 {
		return policy.Unread
	}
	return n
}

// set stores a sample, and returns its slot and the sample that went; -1: none.
func (c *cacheOf) set(sample uint64) (slot, victim int) {
	rule := c.policy.Rule()
	if c.free < len(c.slots) {
		c.slots[c.free] = held{sample, rule.Placed(c.hand)}
		c.free++
		return c.free - 1, -1
	}
	s := policy.NewSearch(rule, c.candidate(sample, 0), c.spread, uint64(len(c.slots)), c.pool)
	for !s.Done() {
		number := c.hand
		c.hand++
		at := s.Slot(number)
		if c.looked != nil {
			c.looked(at)
		}
		h := &c.slots[at]
		held := c.candidate(h.sample, h.reference)
		h.reference = s.Look(number, at, held)
	}
	gone, at, ok := s.Victim()
	if !ok {
		return -1, -1
	}
	c.slots[at] = held{sample, rule.Placed(c.hand)}
	return int(at), int(gone.Sample)
}

// read is a hit, or a load and a set.
func (c *cacheOf) read(sample, nanoseconds uint64) (slot, victim int, hit bool) {
	if at := c.find(sample); at >= 0 {
		c.hit(at)
		return at, -1, true
	}
	c.load(sample, nanoseconds)
	slot, victim = c.set(sample)
	return slot, victim, false
}
