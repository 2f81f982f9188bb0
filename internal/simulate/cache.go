package simulate

import (
	"github.com/stocached/stocached/internal/verify/arena"
	"github.com/stocached/stocached/policy"
)

// arenaCache is a cache of samples that differ in size, with slots as docs/spec/arena-eviction.md has them.
// It has no hints and no plans; with these, or with room for everything, a policyCache counts bytes.
type arenaCache struct {
	trace   *Trace
	options *Options
	costs   bool
	arena   *arena.Arena
}

func newArenaCache(t *Trace, o *Options, kind policy.Kind, room uint64) *arenaCache {
	return &arenaCache{t, o, kind.NeedsCosts(), arena.New(kind, room, uint64(t.Samples), 0, o.Seed)}
}

func (c *arenaCache) replaced() uint64 { return c.arena.Evicted }

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
	room    uint64 // in units of Trace.size
	used    uint64
	hand    uint64
	spread  policy.Spread
	hits    uint64
	loads   uint64
	moved   uint64
	slotOf  []int32 // of each sample; -1: none
	costs   []policy.Cost
	read    []int32 // epoch of the last read; nil: no hints
	entries []entry // slots
	free    []int32 // slots below len(entries) that hold nothing
	given   uint64  // nanoseconds of the next load; 0: as the trace measures
	victim  int     // of the last read; -1: none
	// next says in how many reads a sample is read, as policy.Candidate does; nil: it is not known.
	next   func(sample uint32) uint64
	future *future
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
		slotOf: make([]int32, t.Samples), costs: make([]policy.Cost, t.Samples)}
	c.rule = c.policy.Rule()
	for k := range c.slotOf {
		c.slotOf[k] = -1
	}
	if o.Hints && t.Once {
		c.read = make([]int32, t.Samples)
		for k := range c.read {
			c.read[k] = -1
		}
	}
	if kind.NeedsPlans() && len(t.Accesses) > 0 {
		c.future = newFuture(t)
		c.next = c.future.next
	}
	return c
}

func (c *policyCache) replaced() uint64 { return c.moved }

func (c *policyCache) access(sample uint32, epoch int) bool {
	if c.read != nil {
		c.read[sample] = int32(epoch)
	}
	if c.future != nil {
		c.future.pass(sample)
	}
	if slot := c.slotOf[sample]; slot >= 0 {
		c.hits++
		if c.kind.NeedsHits() {
			e := &c.entries[slot]
			if left := c.rule.Hit(e.reference, c.hand, c.hits); left != e.reference {
				e.reference = left
			}
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
	verdict, home := c.policy.Admit(uint64(sample))
	size := c.trace.size(sample)
	if verdict == policy.Never || size > c.room {
		return false
	}
	if verdict == policy.Home {
		if c.used+size <= c.room {
			c.place(sample, int32(home))
		}
		return false
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
	return false
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

func (c *policyCache) evict(sample uint32) bool {
	newcomer := policy.Candidate{Sample: uint64(sample), Size: c.trace.size(sample), Cost: c.costs[sample]}
	if c.next != nil {
		newcomer.Next = c.next(sample)
	}
	s := policy.NewSearch(c.rule, newcomer, uint64(len(c.entries)))
	for !s.Done() {
		number := c.hand
		c.hand++
		slot := s.Slot(number)
		e := &c.entries[slot]
		if !e.taken {
			s.Skip()
			continue
		}
		held := policy.Candidate{Sample: uint64(e.sample), Size: c.trace.size(e.sample), Cost: c.costs[e.sample],
			Reference: e.reference, Awaited: c.read != nil && c.read[e.sample] != c.read[sample]}
		if c.next != nil {
			held.Next = c.next(e.sample)
		}
		e.reference = s.Look(number, slot, &held)
	}
	victim, slot, ok := s.Victim(c.spread)
	if !ok {
		return false
	}
	c.moved++
	c.victim = int(victim.Sample)
	c.slotOf[victim.Sample] = -1
	c.entries[slot].taken = false
	c.used -= c.trace.size(uint32(victim.Sample))
	c.free = append(c.free, int32(slot))
	return true
}
