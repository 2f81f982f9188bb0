// Package arena simulates how an arena that evicts uses its space: docs/spec/arena-eviction.md. It
// takes the steps of that page in one process, without words, owners and bytes, and asks the rules of
// package policy. Its tests show how much of an arena is lost, and that chains never lose a slot.
package arena

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/stocached/stocached/policy"
)

const (
	wordSlots  = 64 // bits of a word, a slot each
	groupWords = 8
	mostLooks  = 1 << 16 // numbers of the hand that one search takes
)

// Arena is an arena of slots. A sample takes as many as it needs; they are a chain.
//
// The caches that it simulates have hundreds of slots for a sample. So slots are bits of words here, a chain is a
// list of words with the bits that it has of them, and no step but one goes from slot to slot.
type Arena struct {
	Stride  uint64
	Evicted uint64 // victims
	Refused uint64 // sets that found no space

	kind    policy.Kind
	rule    policy.Rule
	seed    uint64
	slots   int
	unused  int       // free slots
	free    []uint64  // a bit for each slot: it is free
	some    []uint64  // a bit for each word of free: it has a free slot
	ends    []uint64  // a bit for each slot: it is the end of a chain
	owners  []uint32  // the sample of each slot that is not free
	spare   [][]piece // memory of chains that were released
	hint    int       // the word of free where the next search begins, the first of its group
	samples []sample
	hand    uint64
	hits    policy.Hits
	loads   uint64
	spread  policy.Spread
}

// piece is a part of a chain: slots of one word that were taken one after the other, from the lowest on.
type piece struct {
	word  int
	slots uint64 // bits
}

// last returns the slot that was taken last.
func (p piece) last() int { return p.word*wordSlots + bits.Len64(p.slots) - 1 }

// sample is an index record.
type sample struct {
	length    uint64
	chain     []piece // in the order in which they were taken: the last slot of the last is the head; nil: not READY
	cost      policy.Cost
	reference uint8 // reference of the slot at the head
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
	words := (slots + wordSlots - 1) / wordSlots
	a := &Arena{Stride: stride, kind: kind, seed: seed, samples: make([]sample, samples), slots: int(slots),
		unused: int(slots), free: ones(slots), some: ones(words), ends: make([]uint64, words), owners: make([]uint32, slots)}
	n := slots
	if kind == policy.KindLRU {
		n /= 32
	}
	a.rule, a.hits = kind.New(max(n, 1), seed).Rule(), kind.Hits(max(n, 1))
	return a
}

// ones returns words with the lowest n bits set.
func ones(n uint64) []uint64 {
	words := make([]uint64, (n+63)/64)
	for k := range words {
		words[k] = math.MaxUint64
	}
	if rest := n % 64; rest > 0 {
		words[n/64] = 1<<rest - 1
	}
	return words
}

// next returns the first bit that is set, from a bit on and around the end; false: none is.
func next(words []uint64, from int) (int, bool) {
	for k, w := 0, from/64; k <= len(words); k++ {
		word := words[w]
		if k == 0 {
			word &= math.MaxUint64 << (from % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word), true
		}
		if w++; w == len(words) {
			w = 0
		}
	}
	return 0, false
}

// Ready says whether a sample is there, and where its chain begins.
func (a *Arena) Ready(i int) (head uint64, ok bool) {
	if chain := a.samples[i].chain; chain != nil {
		return uint64(chain[len(chain)-1].last()), true
	}
	return 0, false
}

// Hand returns the numbers that searches have taken.
func (a *Arena) Hand() uint64 { return a.hand }

// Get reads a sample and says whether it was a hit.
func (a *Arena) Get(i int) bool {
	r := &a.samples[i]
	if r.chain == nil {
		return false
	}
	r.reference = a.hits.After(r.reference, uint64(i), a.hand)
	return true
}

// slotsOf returns the slots that a sample of a length has.
func (a *Arena) slotsOf(length uint64) int { return int(max(1, (length+a.Stride-1)/a.Stride)) }

// Set stores a sample whose load took some time, and says whether it got its slots. A sample that is
// READY is overwritten.
func (a *Arena) Set(i int, length, nanoseconds uint64) bool {
	r := &a.samples[i]
	n := a.slotsOf(length)
	if n > a.slots {
		a.Refused++
		return false
	}
	if a.kind.NeedsCosts() {
		a.loads++
		r.cost, a.spread = r.cost.Loaded(nanoseconds, a.spread, policy.Random(a.seed, a.loads))
	}
	chain := r.chain
	r.chain = nil
	if chain == nil || a.slotsOf(r.length) != n {
		a.release(chain)
		chain = a.memory()
		for taken, victims := 0, 0; taken < n; {
			if a.unused > 0 {
				chain, taken = a.take(i, chain, taken, n)
				continue
			}
			if victims++; victims > 2*n+16 || !a.evict(i, length) {
				a.release(chain)
				a.Refused++
				return false
			}
		}
		r.reference = a.rule.Placed(a.hand)
	}
	r.length, r.chain = length, chain
	return true
}

// Remove takes a sample out.
func (a *Arena) Remove(i int) {
	a.release(a.samples[i].chain)
	a.samples[i].chain = nil
}

// memory returns a chain without slots.
func (a *Arena) memory() (chain []piece) {
	if n := len(a.spare); n > 0 {
		chain, a.spare = a.spare[n-1], a.spare[:n-1]
	}
	return chain
}

// take adds free slots of one word to a chain that has taken ones of n.
func (a *Arena) take(i int, chain []piece, taken, n int) ([]piece, int) {
	w, _ := next(a.some, a.hint)
	a.hint = w - w%groupWords
	before, rest := taken, a.free[w]
	for ; rest != 0 && taken < n; rest &= rest - 1 {
		a.owners[w*wordSlots+bits.TrailingZeros64(rest)] = uint32(i)
		taken++
	}
	a.unused -= taken - before
	p := piece{w, a.free[w] &^ rest}
	if a.free[w] = rest; rest == 0 {
		a.some[w/64] &^= 1 << (w % 64)
	}
	if before == 0 {
		a.ends[w] |= p.slots & -p.slots
	}
	return append(chain, p), taken
}

// release frees a chain. The next search begins with the group of its end.
func (a *Arena) release(chain []piece) {
	if chain == nil {
		return
	}
	for _, p := range chain {
		a.free[p.word] |= p.slots
		a.some[p.word/64] |= 1 << (p.word % 64)
		a.unused += bits.OnesCount64(p.slots)
	}
	if len(chain) > 0 {
		end := chain[0]
		a.ends[end.word] &^= end.slots & -end.slots
		a.hint = end.word - end.word%groupWords
	}
	a.spare = append(a.spare, chain[:0])
}

// evict removes one sample, if the policy lets it go for sample i.
func (a *Arena) evict(i int, length uint64) bool {
	swept := a.kind == policy.KindFIFO || a.kind == policy.KindClock
	newcomer := policy.Candidate{Sample: uint64(i), Size: length, Cost: a.samples[i].cost}
	search := policy.NewSearch(a.rule, newcomer, a.spread, uint64(a.slots), nil)
	for left := mostLooks; !search.Done() && left > 0; left-- {
		if swept {
			passed := a.passed(int(search.Slot(a.hand)), left)
			a.hand += uint64(passed)
			if left -= passed; left == 0 {
				break
			}
		}
		number := a.hand
		a.hand++
		s := search.Slot(number)
		if a.free[s/64]>>(s%64)&1 != 0 || a.owners[s] == uint32(i) {
			continue // no look
		}
		v := a.owners[s]
		r := &a.samples[v]
		held := policy.Candidate{Sample: uint64(v), Size: r.length, Cost: r.cost, Reference: r.reference}
		r.reference = search.Look(number, s, held)
	}
	victim, _, ok := search.Victim()
	if ok {
		a.Remove(int(victim.Sample))
		a.Evicted++
	}
	return ok
}

// passed returns how many slots a hand passes over until it is at the end of a chain, at most left.
func (a *Arena) passed(slot, left int) int {
	end, ok := next(a.ends, slot)
	if !ok {
		return left
	}
	if end < slot {
		end += a.slots
	}
	return min(end-slot, left)
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
	taken := uint64(a.slots - a.unused)
	var used uint64
	for k := range a.samples {
		if a.samples[k].chain != nil {
			used += a.samples[k].length
		}
	}
	all := float64(uint64(a.slots) * a.Stride)
	return Loss{Ends: float64(taken*a.Stride-used) / all, Free: float64(a.unused) / float64(a.slots)}
}

// chain returns the slots of a sample, from the head on.
func (a *Arena) chain(i int) (slots []int) {
	for _, p := range slices.Backward(a.samples[i].chain) {
		for ; p.slots != 0; p.slots &^= 1 << (p.last() % wordSlots) {
			slots = append(slots, p.last())
		}
	}
	return slots
}

// Pieces returns how many slots a sample has on average, and how many runs of slots side by side.
func (a *Arena) Pieces() (slots, runs float64) {
	n := 0.0
	for k := range a.samples {
		before := -1
		for _, s := range a.chain(k) {
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
	seen, ends := make([]bool, a.slots), 0
	for i := range a.samples {
		chain := a.chain(i)
		for k, s := range chain {
			end := a.ends[s/64]>>(s%64)&1 != 0
			if seen[s] || a.owners[s] != uint32(i) || end != (k == len(chain)-1) {
				return fmt.Errorf("slot %d of sample %d is one of sample %d, the end of a chain: %v", s, i, a.owners[s], end)
			}
			seen[s] = true
		}
		if len(chain) > 0 {
			ends++
			if n := a.slotsOf(a.samples[i].length); len(chain) != n {
				return fmt.Errorf("sample %d of %d bytes has %d slots", i, a.samples[i].length, len(chain))
			}
		}
	}
	free := 0
	for s := range a.slots {
		isFree := a.free[s/64]>>(s%64)&1 != 0
		switch {
		case isFree == seen[s]:
			return fmt.Errorf("slot %d: free %v, in a chain %v", s, isFree, seen[s])
		case isFree && a.some[s/64/64]>>(s/64%64)&1 == 0:
			return fmt.Errorf("slot %d is free and no search finds it", s)
		case isFree:
			free++
		}
	}
	all := 0
	for _, w := range a.ends {
		all += bits.OnesCount64(w)
	}
	if free != a.unused || all != ends {
		return fmt.Errorf("%d slots are free, %d counted; %d chains have %d ends", free, a.unused, ends, all)
	}
	return nil
}
