package simulate

import (
	"github.com/stocached/stocached/internal/verify/arena"
	"github.com/stocached/stocached/policy"
)

// arenaCache is a cache of samples that differ in size, with slots as docs/spec/arena-eviction.md has them, of the size
// that loaders and servers choose. It has no plans; with these, or with room for everything, a policyCache counts bytes.
type arenaCache struct {
	trace   *Trace
	options *Options
	costs   bool
	arena   *arena.Arena
}

func newArenaCache(t *Trace, o *Options, kind policy.Kind, room uint64) *arenaCache {
	return &arenaCache{t, o, kind.NeedsCosts(), arena.New(kind, room, uint64(t.Samples), t.Typical(), o.Seed)}
}

func (c *arenaCache) replaced() uint64 { return c.arena.Evicted }

func (c *arenaCache) has(sample uint32) bool {
	_, there := c.arena.Ready(int(sample))
	return there
}

func (c *arenaCache) access(sample uint32, epoch int) bool {
	if c.arena.Get(int(sample)) {
		return true
	}
	nanoseconds := uint64(0)
	if c.costs {
		nanoseconds = c.trace.measured(c.options, sample, epoch)
	}
	c.arena.Set(int(sample), c.trace.size(sample), nanoseconds)
	return false
}

// policyCache is a cache with a policy of package policy: what the protocol does, in one process.
type policyCache struct {
	trace   *Trace
	options *Options
	policy  policy.Policy
	kind    policy.Kind
	rule    policy.Rule
	hits    policy.Hits
	room    uint64 // in units of Trace.size
	used    uint64
	hand    uint64
	spread  policy.Spread
	loads   uint64
	moved   uint64
	slotOf  []int32 // of each sample; -1: none
	costs   []policy.Cost
	entries []entry // slots
	free    []int32 // slots below len(entries) that hold nothing
	given   uint64  // nanoseconds of the next load; 0: as the trace measures
	victim  int     // of the last read; -1: none
	// next says in how many reads a sample is read, as policy.Candidate does; nil: it is not known.
	next func(sample uint32) uint64
	pool *policy.Pool // of the policy planned
}

type entry struct {
	sample    uint32
	reference uint8
	taken     bool
}

func newPolicyCache(t *Trace, o *Options, kind policy.Kind, room uint64) *policyCache {
	slots := room
	if t.Sizes != nil {
		slots = uint64(float64(room) / float64(t.Room()) * float64(t.Samples)) // about
	}
	c := &policyCache{trace: t, options: o, kind: kind, policy: kind.New(slots, o.Seed), room: room,
		slotOf: make([]int32, t.Samples)}
	if kind.NeedsCosts() {
		c.costs = make([]policy.Cost, t.Samples)
	}
	c.rule, c.hits = c.policy.Rule(), kind.Hits(slots)
	for k := range c.slotOf {
		c.slotOf[k] = -1
	}
	if kind.NeedsPlans() {
		c.pool = &policy.Pool{}
	}
	return c
}

func (c *policyCache) replaced() uint64 { return c.moved }

func (c *policyCache) has(sample uint32) bool { return c.slotOf[sample] >= 0 }

func (c *policyCache) access(sample uint32, epoch int) bool {
	if slot := c.slotOf[sample]; slot >= 0 {
		if c.kind.NeedsHits() {
			e := &c.entries[slot]
			e.reference = c.hits.After(e.reference, uint64(sample), c.hand)
		}
		return true
	}
	c.loads++
	if c.kind.NeedsCosts() {
		ns := c.given
		if ns == 0 {
			ns = c.trace.measured(c.options, sample, epoch)
		}
		c.costs[sample], c.spread = c.costs[sample].Loaded(ns, c.spread, policy.Random(c.options.Seed, c.loads))
	}
	c.store(sample)
	return false
}

func (c *policyCache) cost(sample uint32) (cost policy.Cost) {
	if c.costs != nil {
		cost = c.costs[sample]
	}
	return cost
}

// store gives a sample a slot, if the policy has one for it.
func (c *policyCache) store(sample uint32) {
	verdict, home := c.policy.Admit(uint64(sample))
	size := c.trace.size(sample)
	if verdict == policy.Never || size > c.room {
		return
	}
	if verdict == policy.Home {
		if c.used+size <= c.room {
			c.place(sample, int32(home))
		}
		return
	}
	for range maxVictims {
		if c.used+size <= c.room {
			c.place(sample, c.freeSlot())
			break
		}
		if c.rule == nil || !c.evict(sample) {
			break
		}
	}
}

// maxVictims is the most samples that go for one.
const maxVictims = 64

func (c *policyCache) freeSlot() int32 {
	if n := len(c.free); n > 0 {
		slot := c.free[n-1]
		c.free = c.free[:n-1]
		return slot
	}
	return int32(len(c.entries))
}

func (c *policyCache) place(sample uint32, slot int32) {
	for int(slot) >= len(c.entries) {
		c.entries = append(c.entries, entry{})
	}
	e := entry{sample: sample, taken: true}
	if c.rule != nil {
		e.reference = c.rule.Placed(c.hand)
	}
	c.entries[slot] = e
	c.slotOf[sample] = slot
	c.used += c.trace.size(sample)
}

// evict makes a sample go for another one, and says whether one went.
func (c *policyCache) evict(sample uint32) bool {
	slot, ok := c.search(sample)
	if !ok {
		return false
	}
	victim := c.entries[slot].sample
	c.moved++
	c.victim = int(victim)
	c.slotOf[victim] = -1
	c.entries[slot].taken = false
	c.used -= c.trace.size(victim)
	c.free = append(c.free, int32(slot))
	return true
}

// search returns the slot of the sample that goes for another one.
func (c *policyCache) search(sample uint32) (slot uint64, ok bool) {
	newcomer := policy.Candidate{Sample: uint64(sample), Size: c.trace.size(sample), Cost: c.cost(sample)}
	if c.next != nil {
		newcomer.Next = c.next(sample)
	}
	s := policy.NewSearch(c.rule, newcomer, c.spread, uint64(len(c.entries)), c.pool)
	for !s.Done() {
		number := c.hand
		c.hand++
		slot := s.Slot(number)
		e := &c.entries[slot]
		if !e.taken {
			s.Skip()
			continue
		}
		if c.next != nil { // with plans, nothing else counts
			s.Look(number, slot, policy.Candidate{Sample: uint64(e.sample), Next: c.next(e.sample)})
			continue
		}
		e.reference = s.Look(number, slot, policy.Candidate{Sample: uint64(e.sample), Size: c.trace.size(e.sample),
			Cost: c.cost(e.sample), Reference: e.reference})
	}
	_, slot, ok = s.Victim()
	return slot, ok
}
