package cache

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Samples of an arena that evicts lie in chains of slots: docs/spec/arena-eviction.md. A chain begins
// with the slot that has the sample's last bytes.

// numbersPerSearch bounds how many numbers of the hand one search takes.
const numbersPerSearch = 1 << 16

// slotsFor returns how many slots a sample of length bytes takes.
func (c *Cache) slotsFor(length uint64) uint64 { return max(1, (length+c.stride-1)/c.stride) }

// takeChain takes the slots of a claimed sample. An overwrite keeps its slots if it needs as many.
// After Full and Busy the claim is aborted.
func (c *Cache) takeChain(f *fill) (Result, error) {
	n := c.slotsFor(f.length)
	if f.head != 0 {
		if !c.readChain(f) {
			return Busy, errors.Join(c.corrupt("the chain of sample %d, which begins with slot %d, is broken", f.sample,
				f.head-1), c.abort(f))
		}
		if uint64(len(f.slots)) == n {
			return Stored, nil
		}
		c.freeOwn(f)
	}
	for victims := uint64(0); uint64(len(f.slots)) < n; {
		if c.takeLink(f) {
			continue
		}
		r, err := Full, error(nil)
		if victims++; victims <= 2*n+16 && !f.freeOnly {
			r, err = c.evictChain(f)
		}
		if r != Stored || err != nil {
			return r, errors.Join(err, c.abort(f))
		}
	}
	if !c.name(f, f.head) {
		return Busy, c.lost(f)
	}
	fault.At("slot.named")
	c.placed(f.head - 1)
	if f.memory {
		for _, s := range f.slots {
			if !shm.Link(c.seg.SlotSample(uint64(s)).Load()).Pages() {
				c.seg.TakeHuge(uint64(s)*c.stride, c.stride, c.allowance)
			}
		}
	}
	return Stored, nil
}

// readChain lists the slots of a claimed sample, the first bytes first. It returns false if the chain
// has a slot of another sample.
func (c *Cache) readChain(f *fill) bool {
	f.slots = f.slots[:0]
	for s := f.head; s != 0; {
		if s > c.slots || uint64(len(f.slots)) == c.slots {
			return false
		}
		l := shm.Link(c.seg.SlotSample(s - 1).Load())
		if l.Sample() != f.sample+1 {
			return false
		}
		f.slots = append(f.slots, uint32(s-1))
		s = l.Next()
	}
	for a, b := 0, len(f.slots)-1; a < b; a, b = a+1, b-1 {
		f.slots[a], f.slots[b] = f.slots[b], f.slots[a]
	}
	return true
}

// takeLink takes any free slot, and puts it in front of the chain. It begins where this handle took or
// freed a slot last.
func (c *Cache) takeLink(f *fill) bool {
	groups := c.seg.Groups()
	first := c.group.Load()
	for k := range groups {
		g := (first + k) % groups
		base := g * shm.GroupSlots
		end := min(shm.GroupSlots, c.slots-base)
		word := c.seg.Group(g)
		from := shm.FreeFrom(word.Load())
		skipped := false // a free slot without pages, while memory is short
		for s := uint64(from.From()); s < end; s++ {
			l := shm.Link(c.seg.SlotSample(base + s).Load())
			if l.Sample() != 0 {
				continue
			}
			if !l.Pages() && !c.hasMemory(f) {
				skipped = true
				continue
			}
			if !c.tryLink(f, base+s, l) {
				continue
			}
			if !skipped { // one try, as in takeFreeSlot
				word.CompareAndSwap(uint64(from), uint64(shm.NewFreeFrom(from.Seq(), uint32(s+1))))
			}
			c.group.Store(g)
			return true
		}
		if !skipped && uint64(from.From()) < end {
			word.CompareAndSwap(uint64(from), uint64(shm.NewFreeFrom(from.Seq(), uint32(end))))
		}
	}
	return false
}

// hasFreeSlots says whether so many slots are free, and with pages whether these have their memory.
func (c *Cache) hasFreeSlots(n uint64, pages bool) bool {
	for g := range c.seg.Groups() {
		base := g * shm.GroupSlots
		end := min(base+shm.GroupSlots, c.slots)
		for s := base + uint64(shm.FreeFrom(c.seg.Group(g).Load()).From()); s < end; s++ {
			if l := shm.Link(c.seg.SlotSample(s).Load()); l.Sample() != 0 || pages && !l.Pages() {
				continue
			}
			if n--; n == 0 {
				return true
			}
		}
	}
	return false
}

// tryLink takes one slot, if it is still free. The word does not name it yet: the intent does, with the
// rest of the chain.
func (c *Cache) tryLink(f *fill, s uint64, free shm.Link) bool {
	_, intent := c.seg.Claim(c.record, f.entry)
	intent.Store(uint64(shm.NewChainIntent(s+1, f.head)))
	fault.At("slot.intent")
	if !c.seg.SlotSample(s).CompareAndSwap(uint64(free), uint64(shm.NewLink(f.sample+1, f.head, free.Pages()))) {
		return false
	}
	fault.At("slot.taken")
	f.head = s + 1
	f.slots = append(f.slots, uint32(s))
	return true
}

// freeOwn frees all slots of a claimed sample.
func (c *Cache) freeOwn(f *fill) {
	_, intent := c.seg.Claim(c.record, f.entry)
	c.freeChain(f.sample, f.head, intent, "abort.slot", "abort.cursor")
	f.head, f.slots = 0, f.slots[:0]
}

// freeChain frees the slots of a sample from head on, as far as they are the sample's. The intent says
// where the rest begins before a slot is free: then its entry may name another chain.
func (c *Cache) freeChain(sample, head uint64, intent *atomic.Uint64, freed, moved string) {
	for head != 0 && head <= c.slots {
		entry := c.seg.SlotSample(head - 1)
		l := shm.Link(entry.Load())
		if l.Sample() != sample+1 {
			return
		}
		intent.Store(uint64(shm.NewChainIntent(head, l.Next())))
		if entry.CompareAndSwap(uint64(l), uint64(shm.NewLink(0, 0, l.Pages()))) {
			fault.At(freed)
		}
		c.lowerGroup(head-1, moved)
		head = l.Next()
	}
}

// lowerGroup tells searches that a slot was freed.
func (c *Cache) lowerGroup(slot uint64, moved string) {
	g := slot / shm.GroupSlots
	for word := c.seg.Group(g); ; {
		f := shm.FreeFrom(word.Load())
		lower := shm.NewFreeFrom(f.Seq()+1, min(f.From(), uint32(slot%shm.GroupSlots)))
		if word.CompareAndSwap(uint64(f), uint64(lower)) {
			break
		}
	}
	fault.At(moved)
	c.group.Store(g)
}

// freeChainsOfDead frees the chain of a dead claim: what the intents of all entries that list the
// sample name, and what the word names.
func (c *Cache) freeChainsOfDead(record uint32, entry int, sample uint64, w shm.Word) {
	for e := range shm.ClaimsPerClient {
		listed, intent := c.seg.Claim(record, e)
		if listed.Load() != sample+1 || intent.Load() == 0 {
			continue
		}
		candidate, rest := shm.Intent(intent.Load()).Chain()
		if candidate-1 >= c.slots {
			continue
		}
		if shm.Link(c.seg.SlotSample(candidate-1).Load()).Sample() == sample+1 {
			c.freeChain(sample, candidate, intent, "reclaim.slot", "reclaim.cursor")
		} else { // the client that freed it may have died before it moved the group's word
			c.lowerGroup(candidate-1, "reclaim.cursor")
			c.freeChain(sample, rest, intent, "reclaim.slot", "reclaim.cursor")
		}
	}
	_, intent := c.seg.Claim(record, entry)
	c.freeChain(sample, c.layout.Place(w), intent, "reclaim.slot", "reclaim.cursor")
}

// evictChain removes one sample, or takes one slot that it finds free. It returns Full when the policy
// lets no sample go, and Busy when no claim entry is free.
func (c *Cache) evictChain(f *fill) (Result, error) {
	c.endLap()
	newcomer := policy.Candidate{Sample: f.sample, Size: f.length, Cost: c.cost(f.sample)}
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
			s := search.Slot(number)
			l := shm.Link(c.seg.SlotSample(s).Load())
			listed := l.Sample()
			if listed > c.samples {
				return Busy, c.corrupt("slot %d is given to sample %d", s, listed-1)
			}
			if listed == 0 {
				if (l.Pages() || c.hasMemory(f)) && c.tryLink(f, s, l) {
					return Stored, nil
				}
				search.Skip()
				continue
			}
			if listed == f.sample+1 || c.swept && l.Next() != 0 {
				continue // no look
			}
			w := shm.Word(c.seg.Word(listed - 1).Load())
			head := c.layout.Place(w) - 1
			if w.State() != shm.Ready || head >= c.slots {
				search.Skip()
				continue
			}
			m := shm.Meta(c.seg.Meta(listed - 1).Load())
			candidate := policy.Candidate{Sample: listed - 1, Size: c.length(m), Cost: policy.Cost(m.Cost())}
			c.look(&search, number, head, candidate)
		}
		victim, _, ok := search.Victim()
		if !ok {
			return Full, nil
		}
		c.tellLeaving(victim)
		if r, err := c.remove(victim.Sample); r != Full || err != nil {
			return r, err
		}
	}
	return Full, nil
}

// remove makes a READY sample EMPTY, as an overwrite does that is aborted. Full: it was not READY any
// more. Busy: no claim entry is free. The phase need not be OPEN: a clear waits for the entry of the
// newcomer, which is listed all the time.
func (c *Cache) remove(victim uint64) (Result, error) {
	entry := c.takeEntry(victim)
	if entry < 0 {
		return Busy, nil
	}
	fault.At("evict.listed")
	word := c.seg.Word(victim)
	w := shm.Word(word.Load())
	ours := c.layout.Pack(shm.Writing, c.owner, c.layout.Generation(w)+1, c.layout.Place(w))
	if w.State() != shm.Ready || !word.CompareAndSwap(uint64(w), uint64(ours)) {
		c.dropEntry(entry)
		fault.At("evict.unlisted")
		return Full, nil
	}
	fault.At("evict.retired")
	_, intent := c.seg.Claim(c.record, entry)
	c.freeChain(victim, c.layout.Place(w), intent, "abort.slot", "abort.cursor")
	gone := c.layout.Pack(shm.Empty, 0, c.layout.Generation(ours)+1, 0)
	emptied := word.CompareAndSwap(uint64(ours), uint64(gone))
	if emptied {
		fault.At("evict.emptied")
	}
	c.dropEntry(entry)
	fault.At("evict.unlisted")
	if !emptied {
		return Busy, c.corrupt("sample %d changed during its eviction", victim)
	}
	c.count(shm.Evicted, 1)
	return Stored, nil
}

// run returns which bytes of the payload hold the bytes of a fill from at on: at most n, side by side.
func (c *Cache) run(f *fill, at, n uint64) (offset, bytes uint64) {
	if !c.chains {
		return f.offset + at, n
	}
	first := at / c.stride
	end := first + 1
	for end*c.stride < at+n && f.slots[end] == f.slots[end-1]+1 {
		end++
	}
	return uint64(f.slots[first])*c.stride + at%c.stride, min(n, end*c.stride-at)
}

// writePayload writes bytes of a fill at an offset of the sample.
func (c *Cache) writePayload(f *fill, p []byte, at uint64) (done int, err error) {
	for len(p) > 0 && err == nil {
		offset, n := c.run(f, at, uint64(len(p)))
		var wrote int
		wrote, err = c.seg.WritePayload(p[:n], offset)
		done += wrote
		p, at = p[n:], at+n
	}
	return done, err
}

// copyChain copies a sample of len(dst) bytes, the last slot first. It returns false for a chain that
// is no chain of this sample, perhaps because the sample has changed. It stays inside the payload
// whatever the slot table says.
func (c *Cache) copyChain(dst []byte, w shm.Word) bool {
	place := c.layout.Place(w)
	for k := c.slotsFor(uint64(len(dst))); k > 0; {
		high, low := place, place // slots side by side
		for {
			if low-1 >= c.slots {
				return false
			}
			place = shm.Link(c.seg.SlotSample(low - 1).Load()).Next()
			k--
			if k == 0 || place != low-1 || place == 0 {
				break
			}
			low = place
		}
		from := k * c.stride
		to := min(from+(high-low+1)*c.stride, uint64(len(dst)))
		copyBytes(dst[from:to], c.seg.Bytes((low-1)*c.stride, to-from))
	}
	return place == 0
}

// markPages notes in the slots of a fill which of them have all their pages now.
func (c *Cache) markPages(f *fill) {
	page := uint64(os.Getpagesize())
	for k, s := range f.slots {
		written := min(f.length-min(uint64(k)*c.stride, f.length), c.stride)
		entry := c.seg.SlotSample(uint64(s))
		if l := shm.Link(entry.Load()); !l.Pages() && (written+page-1)/page*page >= c.stride {
			entry.Store(uint64(shm.NewLink(l.Sample(), l.Next(), true)))
		}
	}
}
