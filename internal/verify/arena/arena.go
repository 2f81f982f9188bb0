// Package arena simulates how an arena that evicts uses its space: docs/spec/arena-eviction.md. It
// takes the steps of that page in one process, without words, owners and bytes, and asks the rules of
// package policy. Its tests show how much of an arena is lost, and that chains never lose a slot.
package arena

import (
	"fmt"
	"math/bits"

	"github.com/stocached/stocached/policy"
)

const groupSlots = 512

// Arena is an arena of slots. A sample takes as many as it needs; they are a chain.
type Arena struct {
	Stride  uint64
	Evicted uint64 // victims
	Refused uint64 // sets that found no space
	Steps   uint64 // entries and groups that searches for free slots have loaded

	kind    policy.Kind
	rule    policy.Rule
	seed    uint64
	slots   []slot
	unused  int   // free slots
	from    []int // of each group; its end: no slot is free
	hint    int   // the group where the next search begins
	samples []sample
	hand    uint64
	hits    policy.Hits
	loads   uint64
	spread  policy.Spread
}

// slot is an entry of the slot table with its reference byte.
type slot struct {
	sample, next int // + 1; 0: none
	reference    uint8
}

// sample is an index record.
type sample struct {
	length uint64
	head   int // + 1; 0: not READY
	cost   policy.Cost
}

// StrideFor returns the size of slots. typical is the length of a typical sample; 0: unknown.
func StrideFor(payload, samples, typical uint64) uint64 {
	n := payload / (8 * samples)
	if typical > 0 {
		n = typical / 16
	}
	return 1 << min(max(bits.Len64(n)-1, 6), 21)
}

// New returns an empty arena.
func New(kind policy.Kind, payload, samples, typical, seed uint64) *Arena {
	stride := StrideFor(payload, samples, typical)
	return WithSlots(kind, payload/stride, stride, samples, seed)
}

// WithSlots returns an empty arena with a number of slots.
func WithSlots(kind policy.Kind, slots, stride, samples, seed uint64) *Arena {
	a := &Arena{Stride: stride, kind: kind, seed: seed, samples: make([]sample, samples), slots: make([]slot, slots)}
	a.unused = len(a.slots)
	a.from = make([]int, (len(a.slots)+groupSlots-1)/groupSlots)
	n := uint64(len(a.slots))
	if kind == policy.KindLRU {
		n /= 32
	}
	a.rule, a.hits = kind.New(max(n, 1), seed).Rule(), kind.Hits(max(n, 1))
	return a
}

// Ready says whether a sample is there, and where its chain begins.
func (a *Arena) Ready(i int) (head uint64, ok bool) {
	return uint64(a.samples[i].head) - 1, a.samples[i].head != 0
}

// Hand returns the numbers that searches have taken.
func (a *Arena) Hand() uint64 { return a.hand }

// Get reads a sample and says whether it was a hit.
func (a *Arena) Get(i int) bool {
	head := a.samples[i].head
	if head == 0 {
		return false
	}
	s := &a.slots[head-1]
	s.reference = a.hits.After(s.reference, uint64(i), a.hand)
	return true
}

// Set stores a sample whose load took some time, and says whether it got its slots. A sample that is
// READY is overwritten.
func (a *Arena) Set(i int, length, nanoseconds uint64) bool {
	r := &a.samples[i]
	n := int(max(1, (length+a.Stride-1)/a.Stride))
	if n > len(a.slots) {
		a.Refused++
		return false
	}
	if a.kind.NeedsCosts() {
		a.loads++
		r.cost, a.spread = r.cost.Loaded(nanoseconds, a.spread, policy.Random(a.seed, a.loads))
	}
	head, have := r.head, 0
	r.head = 0
	for s := head; s != 0; s = a.slots[s-1].next {
		have++
	}
	if have != n {
		a.free(head)
		head = 0
		for taken, victims := 0, 0; taken < n; {
			if s := a.search(); s != 0 {
				a.slots[s-1] = slot{sample: i + 1, next: head}
				head = s
				taken++
				continue
			}
			if victims++; victims > 2*n+16 || !a.evict(i, length) {
				a.free(head)
				a.Refused++
				return false
			}
		}
		a.slots[head-1].reference = a.rule.Placed(a.hand)
	}
	r.length, r.head = length, head
	return true
}

// Remove takes a sample out.
func (a *Arena) Remove(i int) {
	a.free(a.samples[i].head)
	a.samples[i].head = 0
}

// free frees a chain.
func (a *Arena) free(head int) {
	for head != 0 {
		s := head - 1
		head = a.slots[s].next
		a.slots[s] = slot{}
		a.unused++
		g := s / groupSlots
		a.from[g] = min(a.from[g], s%groupSlots)
		a.hint = g
	}
}

// search returns a free slot + 1; 0: none.
func (a *Arena) search() int {
	if a.unused == 0 { // only to be quick
		a.Steps += uint64(len(a.from))
		return 0
	}
	for k := range a.from {
		g := (a.hint + k) % len(a.from)
		a.Steps++
		end := min(groupSlots, len(a.slots)-g*groupSlots)
		for a.from[g] < end {
			s := g*groupSlots + a.from[g]
			a.from[g]++
			a.Steps++
			if a.slots[s].sample == 0 {
				a.hint = g
				a.unused--
				return s + 1
			}
		}
	}
	return 0
}

// evict removes one sample, if the policy lets it go for sample i.
func (a *Arena) evict(i int, length uint64) bool {
	swept := a.kind == policy.KindFIFO || a.kind == policy.KindClock
	newcomer := policy.Candidate{Sample: uint64(i), Size: length, Cost: a.samples[i].cost}
	search := policy.NewSearch(a.rule, newcomer, uint64(len(a.slots)))
	for left := 1 << 16; !search.Done() && left > 0; left-- {
		number := a.hand
		a.hand++
		s := search.Slot(number)
		v := a.slots[s].sample - 1
		if v < 0 || v == i || swept && a.slots[s].next != 0 {
			continue // no look
		}
		head := a.samples[v].head - 1
		r := &a.slots[head].reference
		*r = search.Look(number, uint64(head), &policy.Candidate{Sample: uint64(v), Size: a.samples[v].length,
			Cost: a.samples[v].cost, Reference: *r})
	}
	victim, _, ok := search.Victim(a.spread)
	if ok {
		a.Remove(int(victim.Sample))
		a.Evicted++
	}
	return ok
}

// Loss is what part of an arena holds no byte of a READY sample.
type Loss struct {
	Ends float64 // unused ends of slots
	Free float64 // free slots
}

// Sum returns all that is lost.
func (l Loss) Sum() float64 { return l.Ends + l.Free }

// Loss returns what is lost now.
func (a *Arena) Loss() Loss {
	taken := uint64(len(a.slots) - a.unused)
	var used uint64
	for k := range a.samples {
		if a.samples[k].head != 0 {
			used += a.samples[k].length
		}
	}
	all := float64(uint64(len(a.slots)) * a.Stride)
	return Loss{Ends: float64(taken*a.Stride-used) / all, Free: float64(a.unused) / float64(len(a.slots))}
}

// Pieces returns how many slots a sample has on average, and how many runs of slots side by side.
func (a *Arena) Pieces() (slots, runs float64) {
	n := 0.0
	for k := range a.samples {
		before := -1
		for s := a.samples[k].head; s != 0; s = a.slots[s-1].next {
			slots++
			if s != before-1 {
				runs++
			}
			if before < 0 {
				n++
			}
			before = s
		}
	}
	return slots / n, runs / n
}

// Check returns an error if a slot has not exactly one owner, or a search would not find it.
func (a *Arena) Check() error {
	seen := make([]bool, len(a.slots))
	for i := range a.samples {
		n := uint64(0)
		for s := a.samples[i].head; s != 0; s = a.slots[s-1].next {
			if seen[s-1] || a.slots[s-1].sample != i+1 {
				return fmt.Errorf("slot %d of sample %d has entry %+v", s-1, i, a.slots[s-1])
			}
			seen[s-1] = true
			n++
		}
		if a.samples[i].head != 0 && n != max(1, (a.samples[i].length+a.Stride-1)/a.Stride) {
			return fmt.Errorf("sample %d of %d bytes has %d slots", i, a.samples[i].length, n)
		}
	}
	free := 0
	for s := range a.slots {
		if a.slots[s].sample == 0 {
			free++
		}
		switch {
		case a.slots[s].sample != 0 && !seen[s]:
			return fmt.Errorf("slot %d is given to sample %d, which does not name it", s, a.slots[s].sample-1)
		case a.slots[s].sample == 0 && s%groupSlots < a.from[s/groupSlots]:
			return fmt.Errorf("slot %d is free and its group is past it", s)
		}
	}
	if free != a.unused {
		return fmt.Errorf("%d slots are free, %d counted", free, a.unused)
	}
	return nil
}
