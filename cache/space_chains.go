package cache

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// chainSpace gives each sample a chain of as many slots as it needs, and samples go for others:
// docs/spec/arena-eviction.md. A chain begins with the slot that has the sample's last bytes.
type chainSpace struct {
	*Cache
	group atomic.Uint64 // group of slots where this handle took or freed a slot last
	swept bool          // the policy looks at one slot after the other
}

func newChainSpace(c *Cache) *chainSpace {
	return &chainSpace{Cache: c, swept: c.seg.Policy == shm.PolicyFIFO || c.seg.Policy == shm.PolicyClock}
}

// slotsFor returns how many slots a sample of length bytes takes.
func (c *Cache) slotsFor(length uint64) uint64 { return max(1, (length+c.stride-1)/c.stride) }

// keeps keeps the chain of any length: take counts its slots, because other clients change it until
// the claim.
func (s *chainSpace) keeps(_ uint64, w shm.Word, _ shm.Meta, _ uint64) (uint64, bool) {
	place := s.layout.Place(w)
	return place, s.possiblePlace(w)
}

func (s *chainSpace) still(uint64, shm.Meta) bool { return true }

// full is not known: only a search for free slots can tell.
func (s *chainSpace) full(uint64) bool { return false }

func (s *chainSpace) memory(length uint64) uint64 {
	return s.slotsFor(length) * max(s.stride, uint64(os.Getpagesize()))
}

// draw leaves it to the first slot without pages that the fill takes: hasMemory.
func (s *chainSpace) draw(*fill) bool { return true }

// take takes the slots of a claimed sample. An overwrite keeps its slots if it needs as many.
func (s *chainSpace) take(f *fill) (Result, error) {
	n := s.slotsFor(f.length)
	if f.head = s.layout.Place(f.word); f.head != 0 {
		if !s.list(f) {
			return Busy, errors.Join(s.corrupt("the chain of sample %d, which begins with slot %d, is broken",
				f.sample, f.head-1), s.abort(f))
		}
		if uint64(len(f.slots)) == n {
			return Stored, nil
		}
		s.free(f)
	}
	for victims := uint64(0); uint64(len(f.slots)) < n; {
		if s.takeFree(f) {
			continue
		}
		r, err := Full, error(nil)
		if victims++; victims <= 2*n+16 && s.mayEvict(&f.request) {
			r, err = s.evict(f, s)
		}
		if r != Stored || err != nil {
			return r, errors.Join(err, s.abort(f))
		}
	}
	if r, err := s.nameHead(f); err != nil {
		return r, err
	}
	if f.memory {
		for _, slot := range f.slots {
			if !s.link(uint64(slot)).Pages() {
				s.seg.TakeHuge(uint64(slot)*s.stride, s.stride, s.allowance)
			}
		}
	}
	return Stored, nil
}

// link returns the entry of a slot in the slot table.
func (c *Cache) link(slot uint64) shm.Link { return shm.Link(c.seg.SlotSample(slot).Load()) }

// list lists the slots of a claimed sample, the first bytes first. It returns false if the chain
// has a slot of another sample.
func (s *chainSpace) list(f *fill) bool {
	f.slots = f.slots[:0]
	for place := f.head; place != 0; {
		if place > s.slots || uint64(len(f.slots)) == s.slots {
			return false
		}
		l := s.link(place - 1)
		if l.Sample() != f.sample+1 {
			return false
		}
		f.slots = append(f.slots, uint32(place-1))
		place = l.Next()
	}
	slices.Reverse(f.slots)
	return true
}

// takeFree takes any free slot, and puts it in front of the chain. It begins where this handle took
// or freed a slot last.
func (s *chainSpace) takeFree(f *fill) bool {
	groups := s.seg.Groups()
	first := s.group.Load()
	for k := range groups {
		g := (first + k) % groups
		base := g * shm.GroupSlots
		end := min(shm.GroupSlots, s.slots-base)
		word := s.seg.Group(g)
		from := shm.FreeFrom(word.Load())
		skipped := false // a free slot without pages, while memory is short
		for k := uint64(from.From()); k < end; k++ {
			l := s.link(base + k)
			if l.Sample() != 0 {
				continue
			}
			if !l.Pages() && !s.hasMemory(f) {
				skipped = true
				continue
			}
			if !s.tryFree(f, base+k, l) {
				continue
			}
			if !skipped { // one try, as in slotSpace.takeFree
				word.CompareAndSwap(uint64(from), uint64(shm.NewFreeFrom(from.Seq(), uint32(k+1))))
			}
			s.group.Store(g)
			return true
		}
		if !skipped && uint64(from.From()) < end {
			word.CompareAndSwap(uint64(from), uint64(shm.NewFreeFrom(from.Seq(), uint32(end))))
		}
	}
	return false
}

func (s *chainSpace) search(length uint64, withMemory bool) bool {
	n := s.slotsFor(length)
	for g := range s.seg.Groups() {
		base := g * shm.GroupSlots
		end := min(base+shm.GroupSlots, s.slots)
		for slot := base + uint64(shm.FreeFrom(s.seg.Group(g).Load()).From()); slot < end; slot++ {
			if l := s.link(slot); l.Sample() != 0 || withMemory && !l.Pages() {
				continue
			}
			if n--; n == 0 {
				return true
			}
		}
	}
	return false
}

// tryFree takes one slot, if it is still free. The word does not name it yet: the intent does, with
// the rest of the chain.
func (s *chainSpace) tryFree(f *fill, slot uint64, free shm.Link) bool {
	_, intent := s.seg.Claim(s.record, f.entry)
	intent.Store(uint64(shm.NewChainIntent(slot+1, f.head)))
	fault.At("slot.intent")
	ours := shm.NewLink(f.sample+1, f.head, free.Pages())
	if !s.seg.SlotSample(slot).CompareAndSwap(uint64(free), uint64(ours)) {
		return false
	}
	fault.At("slot.taken")
	f.head = slot + 1
	f.slots = append(f.slots, uint32(slot))
	return true
}

func (s *chainSpace) free(f *fill) (kept uint64) {
	_, intent := s.seg.Claim(s.record, f.entry)
	s.freeChain(f.sample, f.head, intent, "abort.slot", "abort.cursor")
	f.head, f.slots = 0, f.slots[:0]
	return 0
}

// freeChain frees the slots of a sample from head on, as far as they are the sample's. The intent
// says where the rest begins before a slot is free: then its entry may name another chain.
func (s *chainSpace) freeChain(sample, head uint64, intent *atomic.Uint64, freed, moved string) {
	for head != 0 && head <= s.slots {
		entry := s.seg.SlotSample(head - 1)
		l := shm.Link(entry.Load())
		if l.Sample() != sample+1 {
			return
		}
		intent.Store(uint64(shm.NewChainIntent(head, l.Next())))
		if entry.CompareAndSwap(uint64(l), uint64(shm.NewLink(0, 0, l.Pages()))) {
			fault.At(freed)
		}
		s.lowerGroup(head-1, moved)
		head = l.Next()
	}
}

// lowerGroup tells searches that a slot was freed.
func (s *chainSpace) lowerGroup(slot uint64, moved string) {
	g := slot / shm.GroupSlots
	lowerCursor(s.seg.Group(g), slot%shm.GroupSlots, moved)
	s.group.Store(g)
}

// freeDead frees what the intents of all entries that list the sample name, and what the word
// names.
func (s *chainSpace) freeDead(record uint32, entry int, sample uint64, w shm.Word) (kept uint64) {
	for e := range shm.ClaimsPerClient {
		listed, intent := s.seg.Claim(record, e)
		if listed.Load() != sample+1 || intent.Load() == 0 {
			continue
		}
		candidate, rest := shm.Intent(intent.Load()).Chain()
		if candidate-1 >= s.slots {
			continue
		}
		if s.link(candidate-1).Sample() == sample+1 {
			s.freeChain(sample, candidate, intent, "reclaim.slot", "reclaim.cursor")
		} else { // the client that freed it may have died before it moved the group's word
			s.lowerGroup(candidate-1, "reclaim.cursor")
			s.freeChain(sample, rest, intent, "reclaim.slot", "reclaim.cursor")
		}
	}
	_, intent := s.seg.Claim(record, entry)
	s.freeChain(sample, s.layout.Place(w), intent, "reclaim.slot", "reclaim.cursor")
	return 0
}

func (s *chainSpace) clear() {
	for slot := range s.slots {
		s.seg.SlotSample(slot).Store(uint64(shm.NewLink(0, 0, s.link(slot).Pages())))
	}
	for g := range s.seg.Groups() {
		word := s.seg.Group(g)
		word.Store(uint64(shm.NewFreeFrom(shm.FreeFrom(word.Load()).Seq()+1, 0)))
	}
}

// holder: the rules that go from slot to slot look at a sample once, at the end of its chain.
func (s *chainSpace) holder(slot uint64) (listed uint64, first bool) {
	l := s.link(slot)
	return l.Sample(), !s.swept || l.Next() == 0
}

func (s *chainSpace) takeSeen(f *fill, slot uint64) bool {
	l := s.link(slot)
	return l.Sample() == 0 && (l.Pages() || s.hasMemory(f)) && s.tryFree(f, slot, l)
}

// has is true for any place, because the victim goes with the chain that it has.
func (s *chainSpace) has(head, _ uint64) bool { return head < s.slots }

// retire makes the victim EMPTY, as an overwrite does that is aborted. The phase need not be OPEN:
// a clear waits for the entry of the newcomer, which is listed all the time.
func (s *chainSpace) retire(_ *fill, victim, _ uint64) (Result, error) {
	entry := s.takeEntry(victim)
	if entry < 0 {
		return Busy, nil
	}
	fault.At("evict.listed")
	word := s.seg.Word(victim)
	w := shm.Word(word.Load())
	ours := s.layout.Pack(shm.Writing, s.owner, s.layout.Generation(w)+1, s.layout.Place(w))
	if w.State() != shm.Ready || !word.CompareAndSwap(uint64(w), uint64(ours)) {
		s.dropEntry(entry)
		fault.At("evict.unlisted")
		return Full, nil
	}
	fault.At("evict.retired")
	_, intent := s.seg.Claim(s.record, entry)
	s.freeChain(victim, s.layout.Place(w), intent, "abort.slot", "abort.cursor")
	gone := s.layout.Pack(shm.Empty, 0, s.layout.Generation(ours)+1, 0)
	emptied := word.CompareAndSwap(uint64(ours), uint64(gone))
	if emptied {
		fault.At("evict.emptied")
	}
	s.dropEntry(entry)
	fault.At("evict.unlisted")
	if !emptied {
		return Busy, s.corrupt("sample %d changed during its eviction", victim)
	}
	s.count(shm.Evicted, 1)
	return Stored, nil
}

// run finds slots that follow each other.
func (s *chainSpace) run(f *fill, at, n uint64) (offset, bytes uint64) {
	first := at / s.stride
	end := first + 1
	for end*s.stride < at+n && f.slots[end] == f.slots[end-1]+1 {
		end++
	}
	return uint64(f.slots[first])*s.stride + at%s.stride, min(n, end*s.stride-at)
}

// written notes in the slots of a fill which of them have all their pages now.
func (s *chainSpace) written(f *fill) {
	page := uint64(os.Getpagesize())
	for k, slot := range f.slots {
		bytes := min(f.length-min(uint64(k)*s.stride, f.length), s.stride)
		l := s.link(uint64(slot))
		if !l.Pages() && (bytes+page-1)/page*page >= s.stride {
			s.seg.SlotSample(uint64(slot)).Store(uint64(shm.NewLink(l.Sample(), l.Next(), true)))
		}
	}
}

func (s *chainSpace) usage(stats *Stats, _ uint64) {
	for slot := range s.slots {
		if s.link(slot).Sample() != 0 {
			stats.ArenaNextBytes += s.stride
		}
	}
	stats.ArenaLostBytes = stats.ArenaNextBytes - min(stats.ReadyBytes, stats.ArenaNextBytes)
	stats.ArenaFreeBytes = s.seg.PayloadBytes - stats.ArenaNextBytes
}

// copyChain copies a sample of len(dst) bytes, the last slot first. It returns false for a chain
// that is no chain of this sample, perhaps because the sample has changed. It stays inside the
// payload whatever the slot table says.
func (c *Cache) copyChain(dst []byte, w shm.Word) bool {
	place := c.layout.Place(w)
	for k := c.slotsFor(uint64(len(dst))); k > 0; {
		high, low := place, place // slots side by side
		for {
			if low-1 >= c.slots {
				return false
			}
			place = c.link(low - 1).Next()
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
