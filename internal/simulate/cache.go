package simulate

import (
	"github.com/stocached/stocached/internal/verify/arena"
	"github.com/stocached/stocached/policy"
)

// arenaCache is a cache of samples that differ in size, with slots as docs/spec/arena-eviction.md has them, of the size
// that loaders and servers choose.
type arenaCache struct {
	*arena.Arena
	sizes []uint64
}

func (c arenaCache) replaced() uint64 { return c.Evicted }

func (c arenaCache) has(sample uint32) bool {
	_, there := c.Ready(int(sample))
	return there
}

func (c arenaCache) Read(sample uint32, nanoseconds uint64) bool {
	if c.Get(int(sample)) {
		return true
	}
	c.Set(int(sample), c.sizes[sample], nanoseconds)
	return false
}

// Cache is a cache of samples of one size with a policy of package policy: what the protocol does, in one process.
// Tests compare the decisions of real caches with it.
type Cache struct {
	// Hand and Spread are the words that the clients of a cache share.
	Hand   uint64
	Spread policy.Spread
	// Next says in how many reads a sample is read, as policy.Candidate does. The policy planned needs it.
	Next  func(sample uint32) uint64
	Size  func(sample uint32) uint64 // nil: 1
	Costs []policy.Cost              // the cost of each sample

	policy  policy.Policy
	kind    policy.Kind
	rule    policy.Rule
	hits    policy.Hits
	slots   uint64
	seed    uint64
	loads   uint64
	moved   uint64
	slotOf  []int32 // the slot of each sample; -1: none
	entries []entry // slots that have been used
	pool    *policy.Pool
}

type entry struct {
	sample    uint32
	reference uint8
}

// NewCache returns an empty cache.
func NewCache(kind policy.Kind, samples int, slots, seed uint64) *Cache {
	c := &Cache{kind: kind, policy: kind.New(slots, seed), hits: kind.Hits(slots), slots: slots, seed: seed,
		slotOf: make([]int32, samples), Costs: make([]policy.Cost, samples)}
	c.rule = c.policy.Rule()
	for k := range c.slotOf {
		c.slotOf[k] = -1
	}
	if kind.NeedsPlans() {
		c.pool = &policy.Pool{}
	}
	return c
}

func (c *Cache) replaced() uint64 { return c.moved }

func (c *Cache) has(sample uint32) bool { return c.slotOf[sample] >= 0 }

// Slot returns the slot of a sample; -1: none.
func (c *Cache) Slot(sample int) int { return int(c.slotOf[sample]) }

// Reference returns the reference byte of a slot that holds a sample.
func (c *Cache) Reference(slot int) uint8 { return c.entries[slot].reference }

// Read reads a sample, and says whether it was a hit. After a miss it loads the sample, which takes this time.
func (c *Cache) Read(sample uint32, nanoseconds uint64) bool {
	if slot := c.slotOf[sample]; slot >= 0 {
		if c.kind.NeedsHits() {
			e := &c.entries[slot]
			e.reference = c.hits.After(e.reference, uint64(sample), c.Hand)
		}
		return true
	}
	c.loads++
	if c.kind.NeedsCosts() {
		c.Costs[sample], c.Spread = c.Costs[sample].Loaded(nanoseconds, c.Spread, policy.Random(c.seed, c.loads))
	}
	switch verdict, home := c.policy.Admit(uint64(sample)); {
	case verdict == policy.Never:
	case verdict == policy.Home:
		c.place(sample, home)
	case uint64(len(c.entries)) < c.slots:
		c.place(sample, uint64(len(c.entries)))
	case c.rule != nil:
		if slot, ok := c.search(sample); ok {
			c.slotOf[c.entries[slot].sample] = -1
			c.moved++
			c.place(sample, slot)
		}
	}
	return false
}

func (c *Cache) place(sample uint32, slot uint64) {
	for slot >= uint64(len(c.entries)) {
		c.entries = append(c.entries, entry{})
	}
	c.entries[slot].sample = sample
	if c.rule != nil {
		c.entries[slot].reference = c.rule.Placed(c.Hand)
	}
	c.slotOf[sample] = int32(slot)
}

// candidate is a sample as a search sees it.
func (c *Cache) candidate(sample uint32, reference uint8) policy.Candidate {
	of := policy.Candidate{Sample: uint64(sample), Size: 1, Cost: c.Costs[sample], Reference: reference}
	if c.Next != nil {
		of.Next = c.Next(sample)
	}
	if c.Size != nil {
		of.Size = c.Size(sample)
	}
	return of
}

// search returns the slot of the sample that goes for another one.
func (c *Cache) search(sample uint32) (slot uint64, ok bool) {
	s := policy.NewSearch(c.rule, c.candidate(sample, 0), c.Spread, c.slots, c.pool)
	for !s.Done() {
		number := c.Hand
		c.Hand++
		slot := s.Slot(number)
		e := &c.entries[slot]
		e.reference = s.Look(number, slot, c.candidate(e.sample, e.reference))
	}
	_, slot, ok = s.Victim()
	return slot, ok
}
