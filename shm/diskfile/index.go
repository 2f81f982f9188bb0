package diskfile

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/stocached/stocached/shm"
)

// readIndex reads the index into a control part that is empty, before others have it. It keeps the
// samples that are READY with a place of their own. Two samples with one place are both dropped:
// the file does not say whose bytes lie there.
func (st *store) readIndex(s *shm.Segment) error {
	layout := s.WordLayout()
	var extents []extent
	err := st.eachRecord(s.Samples, func(sample uint64, w shm.Word, meta shm.Meta) {
		s.Meta(sample).Store(uint64(meta))
		place := layout.Place(w)
		// Fills 0: half of a record; an empty sample has the checksum of zeros.
		if w.State() != shm.Ready || meta.Fills() == 0 || place == 0 || !possible(s, sample, place, meta) {
			return
		}
		if s.HasSlotTable() {
			if other := s.SlotSample(place - 1).Load(); other != 0 {
				s.Word(other - 1).Store(0)
				return
			}
			s.SlotSample(place - 1).Store(sample + 1)
		}
		s.Word(sample).Store(uint64(w))
		if s.Variable() {
			extents = append(extents, extent{place - 1, place - 1 + shm.UnitsFor(s.Length(meta)), sample})
		}
	})
	if err == nil && s.Variable() {
		err = st.eachWord(st.geometry.SumsOffset, s.Samples, func(sample, sum uint64) {
			s.Sum(sample).Store(sum)
		})
	}
	if err != nil {
		return err
	}
	freeUnnamed(s, layout)
	keepExtents(s, extents)
	return nil
}

// eachRecord calls a function for each index record of the file that is not zero.
func (st *store) eachRecord(samples uint64, do func(sample uint64, w shm.Word, meta shm.Meta)) error {
	var w uint64
	return st.eachWord(st.geometry.IndexOffset, 2*samples, func(k, word uint64) {
		if k%2 == 0 {
			w = word
		} else if w != 0 || word != 0 {
			do(k/2, shm.Word(w), shm.Meta(word))
		}
	})
}

// eachWord calls a function for n words of the file from an offset on.
func (st *store) eachWord(from, n uint64, do func(k, word uint64)) error {
	part := make([]byte, min(8*n, 1<<20))
	for at := uint64(0); at < 8*n; at += uint64(len(part)) {
		part = part[:min(uint64(len(part)), 8*n-at)]
		if got, err := readAll(st.file, part, int64(from+at)); err != nil {
			return fmt.Errorf("%w: read the index of %s: %w", shm.ErrSystem, st.path, err)
		} else if got < len(part) {
			return fmt.Errorf("%w: the file was truncated", shm.ErrFormat)
		}
		for k := 0; k < len(part); k += 8 {
			do((at+uint64(k))/8, binary.LittleEndian.Uint64(part[k:]))
		}
	}
	return nil
}

// possible says whether a place and a length lie inside the payload.
func possible(s *shm.Segment, sample, place uint64, m shm.Meta) bool {
	if s.Variable() {
		n := s.Length(m)
		return n <= s.Header.SampleBytes && place-1 < s.Units() && shm.UnitsFor(n) <= s.Units()-(place-1)
	}
	return place <= s.Slots && (s.HasSlotTable() || place == sample+1)
}

// freeUnnamed frees the slots whose samples were dropped because another one had the same.
func freeUnnamed(s *shm.Segment, layout shm.WordLayout) {
	if !s.HasSlotTable() {
		return
	}
	for slot := range s.Slots {
		holder := s.SlotSample(slot).Load()
		if holder != 0 && layout.Place(shm.Word(s.Word(holder-1).Load())) != slot+1 {
			s.SlotSample(slot).Store(0)
		}
	}
}

// extent is the units [first, end) of an arena that a sample has.
type extent struct{ first, end, sample uint64 }

// keepExtents drops samples whose extents overlap, and sets where the arena goes on.
func keepExtents(s *shm.Segment, extents []extent) {
	if !s.Variable() {
		return
	}
	slices.SortFunc(extents, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.sample, b.sample))
	})
	last := extent{}
	for k, e := range extents {
		if k > 0 && e.first < last.end {
			s.Word(e.sample).Store(0)
			s.Word(last.sample).Store(0)
		}
		if e.end > last.end {
			last = e
		}
	}
	s.ArenaNext().Store(uint64(shm.NewArenaNext(0, last.end)))
}
