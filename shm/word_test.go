package shm

import (
	"math/rand/v2"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that unpacked words equal the packed values, at the ends of all fields, and that the
// generation after the last is 0 and changes no other field.
func TestWords(t *testing.T) {
	fixed, arena := Geometry{}, Geometry{Flags: FlagVariable}
	for _, c := range []struct {
		layout     WordLayout
		generation uint64
		place      uint64
	}{{fixed.WordLayout(), 1<<17 - 1, 1<<32 - 1}, {arena.WordLayout(), 1<<13 - 1, 1<<36 - 1}} {
		expect.Equal(t, c.layout.GenerationMask(), c.generation, "generation mask")
		for _, g := range []uint64{0, 1, c.generation - 1, c.generation, rand.Uint64N(c.generation)} {
			for _, place := range []uint64{0, 1, c.place, rand.Uint64N(c.place)} {
				for _, owner := range []uint32{0, 1, MaxClientRecords} {
					for _, s := range []State{Empty, Writing, Ready} {
						w := c.layout.Pack(s, owner, g, place)
						if w.State() != s || w.Owner() != owner || c.layout.Generation(w) != g || c.layout.Place(w) != place {
							t.Fatalf("%#x: %d %d %d %d", w, w.State(), w.Owner(), c.layout.Generation(w), c.layout.Place(w))
						}
					}
				}
			}
		}
		if w := c.layout.Pack(Empty, 0, c.generation+1, 5); c.layout.Generation(w) != 0 || c.layout.Place(w) != 5 || w.Owner() != 0 {
			t.Errorf("wrapped: %#x", w)
		}
	}
	if m := NewMeta(1<<32-1, 7); m.Content() != 1<<32-1 || m.Fills() != 7 || m.With(5).Content() != 5 ||
		m.With(5).Fills() != 7 {
		t.Errorf("%#x", m)
	}
	const cost = Meta(0xab) << 56
	if m := (cost | NewMeta(3, 1<<24-1)).Published(1<<32 - 1); m != cost|NewMeta(1<<32-1, 0) || m.With(4) != cost|NewMeta(4, 0) {
		t.Errorf("fills wrap around into the cost, or take it: %#x", m)
	}
	if p := OpenPhase(1 << 48); p.Clearing() || p.Owner() != 0 || p.Epoch() != 1<<48 {
		t.Errorf("%#x", p)
	}
	for _, owner := range []uint32{0, 1, MaxClientRecords} {
		if p := ClearingPhase(owner, 9); !p.Clearing() || p.Owner() != owner || p.Epoch() != 9 {
			t.Errorf("%#x", p)
		}
	}
	if f := NewFreeFrom(1<<32-1, 5); f.Seq() != 1<<32-1 || f.From() != 5 {
		t.Errorf("%#x", f)
	}
	if a := NewArenaNext(MaxClientRecords, 1<<36-1); a.Owner() != MaxClientRecords || a.Unit() != 1<<36-1 {
		t.Errorf("%#x", a)
	}
	if unit, units := NewExtentIntent(1<<36-1, 1<<26).Extent(); unit != 1<<36-1 || units != 1<<26 {
		t.Error(unit, units)
	}
	for bytes, units := range map[uint64]uint64{0: 1, 1: 1, 64: 1, 65: 2, MaxSampleBytes: 1 << 26} {
		expect.Equal(t, UnitsFor(bytes), units, "units of %d bytes", bytes)
	}
}

// Ensure that no two words of a segment share memory, and that all lie in their regions, in each
// kind of segment.
func TestRegionsDoNotOverlap(t *testing.T) {
	for _, o := range []Options{
		{Samples: 257, Slots: 100, SampleBytes: 33, ClientRecords: 5},
		{Samples: 257, Slots: 257, SampleBytes: 33, ClientRecords: 1, Policy: PolicyFirstIndices},
		{Samples: 257, Variable: true, Limit: 3 << 20, ClientRecords: 2},
	} {
		s := fatal.Value(NewHeap(o))(t)
		header := string(s.control[:HeaderBytes])
		n := uint64(0)
		seen := func(v interface{ Add(uint64) uint64 }) {
			if n++; v.Add(n) != n {
				t.Fatalf("word %d was another before", n)
			}
		}
		for _, w := range []interface{ Add(uint64) uint64 }{s.Phase(), s.FreeFrom(), s.ArenaNext(), s.ClientsHigh()} {
			seen(w)
		}
		seen(word(s.control, HandOffset))
		for k := range uint32(AllowanceWords) {
			seen(s.Grant(k))
		}
		for r := range s.ClientRecords {
			for _, at := range []uint64{ClientPID, ClientPIDNamespace, ClientStartTicks, ClientRegistered,
				ClientRegistrations, ClientLabel, ClientLabel + ClientLabelBytes - 8,
				ClientVictims, ClientVictims + 8*(ClaimsPerClient-1)} {
				seen(s.ClientWord(r, at))
			}
			seen(s.Drawn(r))
			for e := range ClaimsPerClient {
				sample, intent := s.Claim(r, e)
				seen(sample)
				seen(intent)
			}
			for stripe := range CounterStripes {
				for c := range CounterCount {
					seen(s.Counter(r, stripe, c))
				}
			}
		}
		for i := range s.Samples {
			seen(s.Word(i))
			seen(s.Meta(i))
			if s.Variable() {
				seen(s.Sum(i))
			}
		}
		if s.HasSlotTable() {
			for slot := range s.Slots {
				seen(s.SlotSample(slot))
			}
		}
		expect.Equal(t, string(s.control[:HeaderBytes]), header, "where a word lies")
		if b := s.Bytes(s.PayloadBytes-1, 1); len(b) != 1 || cap(b) != 1 {
			t.Error("capacity beyond the slice")
		}
	}
}
