package cache

import (
	"errors"
	"os"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// searches bounds how often one set searches for a victim, when other clients take its victims.
const searches = 4

// setPolicy sets the policy of a cache with slots.
func (c *Cache) setPolicy() {
	kind := policy.Kind(c.seg.Policy) + 1
	ticks := c.slots
	if c.chains {
		c.swept = c.seg.Policy == shm.PolicyFIFO || c.seg.Policy == shm.PolicyClock
		if c.seg.Policy == shm.PolicyLRU {
			ticks = c.seg.Fits(0, 0)
		}
	}
	c.policy = kind.New(ticks, c.seed)
	c.rule = c.policy.Rule()
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

// evict gives the slot of another sample to a claimed one: docs/spec/eviction.md, Evict. It returns
// Stored when the word names the slot, and Full, with the claim as it was, when the policy lets no
// sample go.
func (c *Cache) evict(f *fill) (Result, error) {
	c.endLap()
	// All samples have the same size, so any number will do.
	newcomer := policy.Candidate{Sample: f.sample, Size: 1, Cost: c.cost(f.sample)}
	if c.next != nil {
		newcomer.Next = c.next(f.sample, 0)
	}
	var own policy.Pool
	pool := c.takePool(&own)
	defer c.givePool(pool)
	for range searches {
		search := policy.NewSearch(c.rule, newcomer, c.spread(), c.slots, pool)
		for !search.Done() {
			number := c.seg.Hand().Add(1) - 1
			s := search.Slot(number)
			listed := c.seg.SlotSample(s).Load()
			if listed > c.samples {
				return Busy, errors.Join(c.corrupt("slot %d is given to sample %d", s, listed-1), c.abort(f))
			}
			if listed == 0 { // it was freed, and free_from may never say so: who freed it may be dead
				if c.hasMemory(f) && c.tryFreeSlot(f, s) {
					return c.nameSlot(f, s)
				}
				search.Skip()
				continue
			}
			w := shm.Word(c.seg.Word(listed - 1).Load())
			if w.State() != shm.Ready || c.layout.Place(w) != s+1 || listed == f.sample+1 {
				search.Skip() // others fill or evict it, or it came back in another slot
				continue
			}
			candidate := policy.Candidate{Sample: listed - 1, Size: 1, Cost: c.cost(listed - 1)}
			c.look(&search, number, s, candidate)
		}
		victim, s, ok := search.Victim()
		if !ok {
			return Full, nil
		}
		c.tellLeaving(victim)
		if retired, err := c.retire(f, victim.Sample, s); err != nil {
			return Busy, errors.Join(err, c.abort(f))
		} else if retired {
			return c.nameSlot(f, s)
		}
	}
	return Full, nil
}

// takePool takes the pool of this handle for a search, if its policy needs one, and givePool gives it back. Another
// goroutine that searches at the same time begins with an empty pool.
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

// look completes a candidate, which has slot s, and has the search look at it.
func (c *Cache) look(search *policy.Search, number, s uint64, candidate policy.Candidate) {
	if c.references {
		candidate.Reference = c.seg.Reference(s)
	}
	if c.next != nil {
		candidate.Next = c.next(candidate.Sample, search.Soon())
	}
	if left := search.Look(number, s, candidate); left != candidate.Reference {
		c.seg.SetReference(s, left)
	}
}

// tellLeaving tells the program that a sample goes.
func (c *Cache) tellLeaving(victim policy.Candidate) {
	if c.next != nil && c.leaves != nil {
		c.leaves(victim.Sample, victim.Next)
	}
}

// retire evicts the victim from slot s, which is the claim's then. It returns false when the victim
// has changed since the search.
func (c *Cache) retire(f *fill, victim, s uint64) (bool, error) {
	_, intent := c.seg.Claim(c.record, f.entry)
	list, table, word := c.seg.Victim(c.record, f.entry), c.seg.SlotSample(s), c.seg.Word(victim)
	w := shm.Word(word.Load())
	if w.State() != shm.Ready || c.layout.Place(w) != s+1 {
		return false, nil
	}
	intent.Store(s + 1)
	list.Store(victim + 1)
	fault.At("evict.listed")
	retiring := c.layout.Pack(shm.Retiring, c.owner, c.layout.Generation(w)+1, s+1)
	if !word.CompareAndSwap(uint64(w), uint64(retiring)) {
		list.Store(0)
		fault.At("evict.unlisted")
		return false, nil
	}
	fault.At("evict.retired")
	// No client changes the entry and the word but the owner of RETIRING.
	moved := table.CompareAndSwap(victim+1, f.sample+1)
	if moved {
		fault.At("evict.moved")
	}
	gone := c.layout.Pack(shm.Empty, 0, c.layout.Generation(retiring)+1, 0)
	emptied := word.CompareAndSwap(uint64(retiring), uint64(gone))
	if emptied {
		fault.At("evict.emptied")
		c.seg.Persist(victim)
	}
	list.Store(0)
	fault.At("evict.unlisted")
	if !moved || !emptied {
		c.freeSlot(s, f.sample, "abort.slot", "abort.cursor") // the word does not name it, so abort does not
		return false, c.corrupt("slot %d and its sample %d changed during an eviction", s, victim)
	}
	c.count(shm.Evicted, 1)
	f.memory = false // the slot has its pages
	return true, nil
}

func (c *Cache) cost(sample uint64) policy.Cost {
	return policy.Cost(shm.Meta(c.seg.Meta(sample).Load()).Cost())
}

func (c *Cache) spread() policy.Spread { return policy.SpreadOf(c.seg.Spread().Load()) }

// hasMemory draws memory for a new place, once. It returns false when memory is short, or the check of
// it failed.
func (c *Cache) hasMemory(f *fill) bool {
	if !f.memory && !f.short {
		var err error
		f.drawn, err = c.allowance.Draw(c.placeBytes(f.length))
		f.memory, f.short = err == nil, err != nil
	}
	return f.memory
}

// placeBytes returns the bytes of a place for length bytes.
func (c *Cache) placeBytes(length uint64) uint64 {
	if c.chains {
		return c.slotsFor(length) * max(c.stride, uint64(os.Getpagesize()))
	}
	return length
}

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

// endEviction ends an eviction of a dead client: the victim is READY again if the slot is still its
// own, else EMPTY.
func (c *Cache) endEviction(record uint32, entry int) {
	listed := c.seg.Victim(record, entry).Load()
	if listed == 0 {
		return
	}
	if listed > c.samples {
		c.count(shm.Corrupt, 1)
		return
	}
	word := c.seg.Word(listed - 1)
	w := shm.Word(word.Load())
	place := c.layout.Place(w)
	if w.State() != shm.Retiring || w.Owner() != record+1 || place == 0 || place > c.slots {
		return
	}
	to := c.layout.Pack(shm.Empty, 0, c.layout.Generation(w)+1, 0)
	if c.seg.SlotSample(place-1).Load() == listed {
		to = c.layout.Pack(shm.Ready, 0, c.layout.Generation(w), place)
	}
	if word.CompareAndSwap(uint64(w), uint64(to)) {
		fault.At("reclaim.victim")
		c.seg.Persist(listed - 1)
	}
}
