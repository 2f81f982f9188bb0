package policy

// Hits says what a hit leaves in the reference byte of its slot, for a policy that needs hits. It is no part of
// Rule: calls take a noticeable part of the time of a hit, so compilers put Settled in line.
type Hits struct {
	kind  Kind
	shift int // shift of lru
}

// Hits returns what hits leave in a cache with this policy.
func (k Kind) Hits(slots uint64) Hits { return Hits{kind: k, shift: lruShift(slots)} }

// NeedsHand says whether Settled and After depend on now, which is as Rule has it.
func (h *Hits) NeedsHand() bool { return h.kind == KindLRU || h.kind == KindLFU }

// Settled says whether a hit of a sample leaves the byte as it is: then a reader does not write it.
func (h *Hits) Settled(reference uint8, sample, now uint64) bool {
	switch h.kind {
	case KindClock:
		return reference >= clockMost
	case KindLRU:
		return reference == lruTick(now, h.shift)
	case KindLFU:
		return !lfuCounts(reference, sample, now)
	}
	return true
}

// After is the byte that a hit leaves behind.
func (h *Hits) After(reference uint8, sample, now uint64) uint8 {
	switch {
	case h.Settled(reference, sample, now):
		return reference
	case h.kind == KindLRU:
		return lruTick(now, h.shift)
	}
	return min(reference, 254) + 1
}
