package cache

import (
	"sync"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// arenaSpace gives each sample an extent: units of 64 bytes, side by side, from the end of the
// arena. A sample keeps its extent until a clear, also while it is EMPTY.
type arenaSpace struct {
	whole
	// protects the steps from an extent's intent to its name in the word: one extent of this owner
	// at a time
	allocating sync.Mutex
}

// keeps drops an extent that is too small. If the claim kept it, a kill could leave that extent
// with the new length in meta, and it would look larger than it is.
func (s *arenaSpace) keeps(sample uint64, w shm.Word, m shm.Meta, length uint64) (uint64, bool) {
	place, has := s.layout.Place(w), shm.UnitsFor(s.seg.Length(m))
	switch {
	case place == 0:
		return 0, w.State() == shm.Empty
	case place > s.units || has > s.units-(place-1):
		// or w has changed, and our CAS will fail
		return 0, s.seg.Word(sample).Load() != uint64(w)
	case has < shm.UnitsFor(length):
		return 0, true
	}
	return place, true
}

// still is false if the word has its old value again, but another extent.
func (s *arenaSpace) still(sample uint64, m shm.Meta) bool {
	return s.seg.Meta(sample).Load() == uint64(m)
}

func (s *arenaSpace) full(length uint64) bool {
	return shm.ArenaNext(s.seg.ArenaNext().Load()).Unit()+shm.UnitsFor(length) > s.units
}

func (s *arenaSpace) take(f *fill) (Result, error) {
	if s.layout.Place(f.word) == 0 {
		if r, err := s.takeExtent(f); r != Stored || err != nil {
			return r, err
		}
	}
	s.at(f, (s.layout.Place(f.word)-1)*shm.UnitBytes, max(f.length, shm.UnitBytes))
	return Stored, nil
}

// takeExtent allocates from the end of the arena. It stores the intent before it takes the extent.
// A client that reclaims our claims gives the extent to the sample if arena_next shows that we took
// it. This owner takes one extent at a time: a reclaim could not tell apart two intents that end at
// the same unit.
func (s *arenaSpace) takeExtent(f *fill) (Result, error) {
	units := shm.UnitsFor(f.length)
	_, intent := s.seg.Claim(s.record, f.entry)
	next := s.seg.ArenaNext()
	s.allocating.Lock()
	for {
		a := shm.ArenaNext(next.Load())
		if a.Unit()+units > s.units {
			intent.Store(0)
			s.allocating.Unlock()
			return Full, s.abort(f)
		}
		intent.Store(uint64(shm.NewExtentIntent(a.Unit(), units)))
		fault.At("extent.intent")
		if !next.CompareAndSwap(uint64(a), uint64(shm.NewArenaNext(s.owner, a.Unit()+units))) {
			continue
		}
		fault.At("extent.taken")
		s.setLength(f.sample, f.length) // before the name: a named extent has its length
		named := s.name(f, a.Unit()+1)
		if named {
			fault.At("extent.named")
		}
		s.allocating.Unlock()
		if !named {
			return Busy, s.lost(f)
		}
		return Stored, nil
	}
}

// setLength stores the length of an extent. Only the client that holds or reclaims the claim of the
// sample may call it.
func (s *arenaSpace) setLength(sample, length uint64) {
	meta := s.seg.Meta(sample)
	meta.Store(uint64(shm.Meta(meta.Load()).With(uint32(length))))
}

func (s *arenaSpace) free(f *fill) (kept uint64) { return s.layout.Place(f.word) }

// freeDead keeps the extent that the word names. Without one it keeps the extent of an intent, if
// arena_next shows that the owner took it as the last extent.
func (s *arenaSpace) freeDead(record uint32, _ int, sample uint64, w shm.Word) (kept uint64) {
	if place := s.layout.Place(w); place != 0 {
		return place
	}
	a := shm.ArenaNext(s.seg.ArenaNext().Load())
	for e := range shm.ClaimsPerClient {
		entry, intent := s.seg.Claim(record, e)
		unit, units := shm.Intent(intent.Load()).Extent()
		if entry.Load() == sample+1 && units > 0 && a.Owner() == record+1 && a.Unit() == unit+units {
			length := min(units*shm.UnitBytes, shm.MaxSampleBytes)
			s.setLength(sample, length) // before the word: a named extent has its length
			return unit + 1
		}
	}
	return 0
}

// clear has nothing to do: the end of the arena is on the control page, with all other cursors.
func (s *arenaSpace) clear() {}

func (s *arenaSpace) usage(stats *Stats, named uint64) {
	next := shm.ArenaNext(s.seg.ArenaNext().Load()).Unit() * shm.UnitBytes
	stats.ArenaNextBytes = next
	stats.ArenaLostBytes = next - min(named, next) // named may exceed next, which was loaded later
}
