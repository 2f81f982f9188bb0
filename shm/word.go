package shm

// State of a sample, the low three bits of its index word.
type State uint8

// The states. OUT (no slot by first-indices) is never stored: readers compute it.
const (
	Empty    State = 0
	Writing  State = 1
	Ready    State = 2
	Retiring State = 3 // it loses its slot to another sample; only in caches that evict
)

const (
	StateBits = 3
	OwnerBits = 12
	// Fixed-size: generation 17 bits, place 32. Arena: generation 13 bits, place 36.
	FixedPlaceShift = 32
	ArenaPlaceShift = 28
	generationShift = StateBits + OwnerBits
	ownerMask       = 1<<OwnerBits - 1
	stateMask       = 1<<StateBits - 1
)

// Word is an index word: state 3 bits, owner 12, generation, place. The bits of the generation
// depend on the kind of segment, so WordLayout has the methods that need them.
type Word uint64

// State returns the state. Values above Retiring are corrupt, and so is Retiring in a cache that does
// not evict.
func (w Word) State() State { return State(w & stateMask) }

// Owner returns the owner number, record + 1; 0 is no owner.
func (w Word) Owner() uint32 { return uint32(w>>StateBits) & ownerMask }

// WordLayout packs the words of one segment. Slots and arena differ only in the shift of the place.
type WordLayout struct{ placeShift uint8 }

// WordLayout returns how this segment packs its index words.
func (g *Geometry) WordLayout() WordLayout {
	if g.Variable() && !g.Chains() {
		return WordLayout{ArenaPlaceShift}
	}
	return WordLayout{FixedPlaceShift}
}

// GenerationMask is the largest generation. 0 follows it.
func (l WordLayout) GenerationMask() uint64 { return 1<<(l.placeShift-generationShift) - 1 }

// Generation returns how often the sample was emptied or overwritten, modulo GenerationMask + 1.
func (l WordLayout) Generation(w Word) uint64 {
	return uint64(w) >> generationShift & l.GenerationMask()
}

// Place returns slot + 1 or unit + 1; 0 is none.
func (l WordLayout) Place(w Word) uint64 { return uint64(w) >> l.placeShift }

// Pack makes a word. The generation is taken modulo GenerationMask + 1.
func (l WordLayout) Pack(s State, owner uint32, generation, place uint64) Word {
	return Word(uint64(s) | uint64(owner)<<StateBits |
		(generation&l.GenerationMask())<<generationShift | place<<l.placeShift)
}

// Meta is the second word of an index record: content 32 bits, fills 24, cost 8. The content is the
// sample's length in a variable-size cache, else its CRC-32C.
type Meta uint64

const (
	metaContentBits = 32
	metaFillsBits   = 24
	metaContentMask = 1<<metaContentBits - 1
	metaFillsMask   = 1<<metaFillsBits - 1
)

// NewMeta packs a content and the number of publishes of the sample, modulo 2^24.
func NewMeta(content, fills uint32) Meta {
	return Meta(uint64(content) | uint64(fills&metaFillsMask)<<metaContentBits)
}

// Content returns the length (check it before use) or the checksum.
func (m Meta) Content() uint32 { return uint32(m & metaContentMask) }

// Fills returns the number of publishes of the sample, modulo 2^24.
func (m Meta) Fills() uint32 { return uint32(m>>metaContentBits) & metaFillsMask }

// Cost returns what the sample cost to load, as docs/spec/policies.md encodes it; 0: unknown.
func (m Meta) Cost() uint8 { return uint8(m >> (metaContentBits + metaFillsBits)) }

// WithCost returns m with another cost.
func (m Meta) WithCost(c uint8) Meta {
	return m&(1<<(metaContentBits+metaFillsBits)-1) | Meta(c)<<(metaContentBits+metaFillsBits)
}

// With returns m with another content. Fills and cost stay.
func (m Meta) With(content uint32) Meta { return m&^metaContentMask | Meta(content) }

// Published returns m after a publish: another content, and one fill more.
func (m Meta) Published(content uint32) Meta {
	return m&^(metaFillsMask<<metaContentBits|metaContentMask) | NewMeta(content, m.Fills()+1)
}

// Phase is the control word that a clear changes: state 3 bits (0 OPEN, 1 CLEARING), owner 12,
// epoch 49.
type Phase uint64

// OpenPhase packs OPEN for a cache with epoch clears.
func OpenPhase(epoch uint64) Phase { return Phase(epoch << generationShift) }

// ClearingPhase packs CLEARING by owner for a cache with epoch clears. Owner 0: a client began the
// clear and gave up; the next client that claims continues it.
func ClearingPhase(owner uint32, epoch uint64) Phase {
	return Phase(1 | uint64(owner)<<StateBits | epoch<<generationShift)
}

// Clearing says whether a clear is running.
func (p Phase) Clearing() bool { return p&stateMask != 0 }

// Owner returns the clearer's owner number; 0 when OPEN, or when the clearer gave up.
func (p Phase) Owner() uint32 { return uint32(p>>StateBits) & ownerMask }

// Epoch returns the number of clears that have ended.
func (p Phase) Epoch() uint64 { return uint64(p) >> generationShift }

// FreeFrom is the control word of the search for a free slot. Its low 32 bits are from: all slots
// below from were taken when a search checked them. Its high 32 bits are seq, which changes with
// each freed slot: so a search cannot raise from past a slot that was freed after the search passed
// it.
type FreeFrom uint64

// NewFreeFrom packs seq and from.
func NewFreeFrom(seq, from uint32) FreeFrom { return FreeFrom(uint64(seq)<<32 | uint64(from)) }

// From returns the first slot that may be free.
func (f FreeFrom) From() uint32 { return uint32(f) }

// Seq returns the number of slots freed so far, modulo 2^32.
func (f FreeFrom) Seq() uint32 { return uint32(f >> 32) }

// ArenaNext is the control word of the bump allocator: the last allocator, and the first unit that
// was never allocated.
type ArenaNext uint64

// NewArenaNext packs the last allocator's owner number and the next unit.
func NewArenaNext(owner uint32, unit uint64) ArenaNext {
	return ArenaNext(uint64(owner)<<StateBits | unit<<ArenaPlaceShift)
}

// Owner returns the owner number of the last allocator; 0 is no owner.
func (a ArenaNext) Owner() uint32 { return uint32(a>>StateBits) & ownerMask }

// Unit returns the first unit that was never allocated.
func (a ArenaNext) Unit() uint64 { return uint64(a) >> ArenaPlaceShift }

// Intent is the second word of a claim entry: the place that the claim is about to take. In an
// arena: first unit in the low 36 bits, number of units in the high 28. With slots: slot + 1.
type Intent uint64

// NewExtentIntent packs an extent.
func NewExtentIntent(unit, units uint64) Intent { return Intent(unit | units<<36) }

// Extent returns the first unit and the number of units; 0 units: no intent.
func (t Intent) Extent() (unit, units uint64) { return uint64(t) & (1<<36 - 1), uint64(t) >> 36 }

// NewChainIntent packs the slot + 1 that a claim takes or frees, and the slot + 1 where the rest of its
// chain begins; 0: none. Only if Chains.
func NewChainIntent(candidate, rest uint64) Intent { return Intent(candidate | rest<<32) }

// Chain returns what NewChainIntent has packed.
func (t Intent) Chain() (candidate, rest uint64) { return uint64(t) & (1<<32 - 1), uint64(t) >> 32 }

// Link is an entry of the slot table in a cache with chains: next 32 bits, pages 1, sample + 1 31.
type Link uint64

// NewLink packs the slot + 1 that follows, 0 after the last one, and the sample + 1.
func NewLink(sample, next uint64, pages bool) Link {
	l := Link(next | sample<<33)
	if pages {
		l |= 1 << 32
	}
	return l
}

// Sample returns the sample + 1 that the slot belongs to; 0: the slot is free.
func (l Link) Sample() uint64 { return uint64(l >> 33) }

// Next returns the slot + 1 that follows in the chain.
func (l Link) Next() uint64 { return uint64(l & (1<<32 - 1)) }

// Pages says whether all pages of the slot exist.
func (l Link) Pages() bool { return l&(1<<32) != 0 }

// UnitsFor returns how many arena units a sample of length bytes takes: at least one, so that each
// extent has a place.
func UnitsFor(length uint64) uint64 { return max(1, (length+UnitBytes-1)/UnitBytes) }
