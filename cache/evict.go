package cache

import (
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

const (
	// searches bounds how often one set searches for a victim, when other clients take its victims.
	searches = 4
	// numbersPerSearch bounds how many numbers of the hand one search takes.
	numbersPerSearch = 1 << 16
)

// evictor is a space in which a sample may go for another one.
type evictor interface {
	// holder returns sample + 1 of the sample that has a slot, 0 for none. first: a look at this
	// slot of the sample counts.
	holder(slot uint64) (listed uint64, first bool)
	// has says whether a READY sample, whose place begins with slot head, may go for a look at
	// slot.
	has(head, slot uint64) bool
	// takeSeen takes a slot for a claim if it is free, and there is memory for it.
	takeSeen(f *fill, slot uint64) bool
	// retire makes a victim EMPTY: Stored. Full: it has changed since the search. Busy: no claim
	// entry is free, or with an error.
	retire(f *fill, victim, slot uint64) (Result, error)
}

// setPolicy sets the policy of a cache with slots.
func (c *Cache) setPolicy() {
	kind := policy.Kind(c.seg.Policy) + 1
	ticks := c.slots
	if c.chains && c.seg.Policy == shm.PolicyLRU {
		ticks = c.seg.Fits(0, 0)
	}
	c.policy = kind.New(ticks, c.seed)
	c.rule = c.policy.Rule()
	c.retires = c.rule != nil && !c.chains
	if !kind.NeedsPlans() {
		c.next = nil
	}
	if c.hits = kind.Hits(ticks); c.hits.NeedsHand() {
		c.hand = c.seg.Hand()
	}
	c.costs, c.references = kind.NeedsCosts(), kind.NeedsHits() && !c.readOnly
}

// evicts says whether a set into a full cache may give the slot of another sample to its own.
func (c *Cache) evicts() bool { return c.rule != nil }

func (c *Cache) mayEvict(q *request) bool { return c.evicts() && !q.freeOnly }

// evict has the policy choose a sample that goes for a claimed one, and lets it go:
// docs/spec/eviction.md, Evict. Stored: that, or it took a slot that it found free. Full: the
// policy lets no sample go. The claim stays in any case.
func (c *Cache) evict(f *fill, s evictor) (Result, error) {
	c.endLap()
	newcomer := policy.Candidate{Sample: f.sample, Size: c.sizeOf(f.length), Cost: c.cost(f.sample)}
	if c.next != nil {
		newcomer.Next = c.next(f.sample, 0)
	}
	var own policy.Pool
	pool := c.takePool(&own)
	defer c.givePool(pool)
	for range searches {
		search := policy.NewSearch(c.rule, newcomer, c.spread(), c.slots, pool)
		for left := numbersPerSearch; !search.Done() && left > 0; left-- {
			number := c.seg.Hand().Add(1) - 1
			slot := search.Slot(number)
			listed, first := s.holder(slot)
			switch {
			case listed > c.samples:
				return Busy, c.corrupt("slot %d is given to sample %d", slot, listed-1)
			case listed == 0: // free, and perhaps no cursor says so: who freed it may be dead
				if s.takeSeen(f, slot) {
					return Stored, nil
				}
				search.Skip()
			case listed != f.sample+1 && first:
				c.look(&search, s, number, slot, listed-1)
			}
		}
		victim, slot, ok := search.Victim()
		if !ok {
			return Full, nil
		}
		c.tellLeaving(victim)
		if r, err := s.retire(f, victim.Sample, slot); r != Full || err != nil {
			return r, err
		}
	}
	return Full, nil
}

// look has the search look at the sample that has a slot.
func (c *Cache) look(search *policy.Search, s evictor, number, slot, sample uint64) {
	w := shm.Word(c.seg.Word(sample).Load())
	head := c.layout.Place(w) - 1
	if w.State() != shm.Ready || !s.has(head, slot) {
		search.Skip() // others fill or evict it
		return
	}
	m := shm.Meta(c.seg.Meta(sample).Load())
	candidate := policy.Candidate{
		Sample: sample, Size: c.sizeOf(c.length(m)), Cost: policy.Cost(m.Cost()),
	}
	if c.references {
		candidate.Reference = c.seg.Reference(head)
	}
	if c.next != nil {
		candidate.Next = c.next(sample, search.Soon())
	}
	if left := search.Look(number, head, candidate); left != candidate.Reference {
		c.seg.SetReference(head, left)
	}
}

// sizeOf is the size of a sample for the policy. If all have the same size, any number will do.
func (c *Cache) sizeOf(length uint64) uint64 {
	if c.variable {
		return length
	}
	return 1
}

// takePool takes the pool of this handle for a search, if its policy needs one, and givePool gives
// it back. Another goroutine that searches at the same time begins with an empty pool.
func (c *Cache) takePool(pool *policy.Pool) *policy.Pool {
	if c.next == nil {
		return nil
	}
	c.pooling.Lock()
	*pool, c.pool = c.pool, policy.Pool{}
	c.pooling.Unlock()
	return pool
}

func (c *Cache) givePool(pool *policy.Pool) {
	if pool == nil {
		return
	}
	c.pooling.Lock()
	c.pool.Merge(pool)
	c.pooling.Unlock()
}

// tellLeaving tells the program that a sample goes.
func (c *Cache) tellLeaving(victim policy.Candidate) {
	if c.next != nil && c.leaves != nil {
		c.leaves(victim.Sample, victim.Next)
	}
}

func (c *Cache) cost(sample uint64) policy.Cost {
	return policy.Cost(shm.Meta(c.seg.Meta(sample).Load()).Cost())
}

func (c *Cache) spread() policy.Spread { return policy.SpreadOf(c.seg.Spread().Load()) }

// placed stores the reference byte of a sample that has just got its slot.
func (c *Cache) placed(s uint64) {
	if c.references {
		c.seg.SetReference(s, c.rule.Placed(c.seg.Hand().Load()))
	}
}

// now is the hand, if hits need it: they load no shared word that their policy does not need.
func (c *Cache) now() uint64 {
	if c.hand == nil {
		return 0
	}
	return c.hand.Load()
}

// loaded stores in the meta of a claimed sample what its load took.
func (c *Cache) loaded(f *fill) {
	if f.took <= 0 {
		return
	}
	c.count(shm.LoadNS, uint64(f.took))
	meta := c.seg.Meta(f.sample)
	m := shm.Meta(meta.Load())
	cost, now := policy.Cost(m.Cost()).Loaded(uint64(f.took), c.spread(), policy.Random(c.seed, c.loads.Add(1)))
	c.seg.Spread().Store(uint64(now)) // an update that is lost does no harm
	if c.chains {
		m = m.With(uint32(f.length)) // the cost of a byte is known, even if the sample gets no slots
	}
	meta.Store(uint64(m.WithCost(uint8(cost))))
}
