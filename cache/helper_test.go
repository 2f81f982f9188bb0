package cache_test

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// heap makes a segment in ordinary memory, which the race detector sees.
func heap(t testing.TB, o shm.Options) *shm.Segment {
	t.Helper()
	seg := fatal.Value(shm.NewHeap(o))(t)
	t.Cleanup(func() { seg.Close() })
	return seg
}

// mapped makes a memfd segment, like a program.
func mapped(t testing.TB, o shm.Options) *shm.Segment {
	t.Helper()
	seg := fatal.Value(shm.Create(o))(t)
	t.Cleanup(func() { seg.Close() })
	return seg
}

// named makes a named segment in a test directory on /dev/shm.
func named(t testing.TB, o shm.Options) *shm.Segment {
	t.Helper()
	o.Name, o.Dir = "test", tmpfs.Folder(t)
	return mapped(t, o)
}

// attach makes a client and closes it when the test ends.
func attach(t testing.TB, seg *shm.Segment) *cache.Cache {
	t.Helper()
	c, err := cache.Attach(seg, cache.Options{Label: strings.ReplaceAll(t.Name(), string(filepath.Separator), " ")})
	fatal.If(t, err)
	t.Cleanup(func() { expect.NoError(t, c.Close()) })
	return c
}

// payload returns a sample whose bytes identify sample and version: a byte of another one is found.
func payload(sample, version, n int) []byte {
	p := make([]byte, n)
	rng := rand.NewPCG(uint64(sample), uint64(version))
	for k := 0; k < n; k += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], rng.Uint64())
		copy(p[k:], word[:])
	}
	return p
}

func set(t testing.TB, c *cache.Cache, i int, data []byte, flags cache.Flags, want cache.Result) {
	t.Helper()
	r, err := c.Set(i, data, flags)
	if err != nil || r != want {
		t.Fatalf("set %d: %v, %v; want %v", i, r, err, want)
	}
}

// wantSample checks by each way of reading that a sample is stored.
func wantSample(t testing.TB, c *cache.Cache, i int, want []byte) {
	t.Helper()
	dst := make([]byte, len(want)+1)
	if n, hit, err := c.Get(i, dst); err != nil || !hit || string(dst[:n]) != string(want) {
		t.Fatalf("get %d: %d bytes, hit %v, error %v, as stored %v", i, n, hit, err, string(dst[:n]) == string(want))
	}
	if view, hit, err := c.View(i); !c.Segment().Policy.Evicts() && (err != nil || !hit || string(view) != string(want)) {
		t.Fatalf("view %d: %d bytes, hit %v, error %v, as stored %v", i, len(view), hit, err, string(view) == string(want))
	}
}

func wantMiss(t testing.TB, c *cache.Cache, i int) {
	t.Helper()
	if c.Segment().Policy.Evicts() {
		if s, err := c.State(i); err != nil || s == cache.StateReady {
			t.Fatalf("sample %d: %v, error %v; want a miss", i, s, err)
		}
	} else if _, hit, err := c.View(i); err != nil || hit {
		t.Fatalf("view %d: hit %v, error %v; want a miss", i, hit, err)
	}
}

func stats(t testing.TB, c *cache.Cache) cache.Stats {
	t.Helper()
	s := fatal.Value(c.Stats())(t)
	return s
}

// checkSound checks a segment at rest: it has no claims, each READY sample has its stored bytes,
// no place belongs to two samples, the slot table agrees with the index, and no slot is lost.
func checkSound(t testing.TB, seg *shm.Segment) {
	t.Helper()
	if seg.Chains() {
		checkChains(t, seg)
		checkIdle(t, seg)
		return
	}
	layout := seg.WordLayout()
	type extent struct{ first, end, sample uint64 }
	var extents []extent
	held := map[uint64]uint64{} // slot -> sample
	for i := range seg.Samples {
		w, m := shm.Word(seg.Word(i).Load()), shm.Meta(seg.Meta(i).Load())
		place := layout.Place(w)
		if w.State() != shm.Empty && w.State() != shm.Ready {
			t.Errorf("sample %d is left in state %d by client %d", i, w.State(), w.Owner())
			continue
		}
		if seg.Variable() {
			if place == 0 {
				if w.State() == shm.Ready {
					t.Errorf("sample %d is READY without a place", i)
				}
				continue
			}
			extents = append(extents, extent{place - 1, place - 1 + shm.UnitsFor(seg.Length(m)), i})
		} else if w.State() == shm.Ready {
			if place == 0 || place > seg.Slots {
				t.Errorf("sample %d is READY in place %d", i, place)
				continue
			}
			if other, taken := held[place-1]; taken {
				t.Errorf("samples %d and %d share slot %d", i, other, place-1)
			}
			held[place-1] = i
		} else if place != 0 {
			t.Errorf("sample %d is EMPTY in place %d", i, place)
		}
		if w.State() == shm.Ready {
			offset := (place - 1) * seg.SlotStride
			if crc32.Checksum(seg.Bytes(offset, seg.Length(m)), shm.Castagnoli) != seg.Checksum(i, m) {
				t.Errorf("sample %d is READY and corrupt", i)
			}
		}
	}
	for k, a := range extents {
		if a.end > seg.Units() {
			t.Errorf("sample %d ends at unit %d of %d", a.sample, a.end, seg.Units())
		}
		for _, b := range extents[:k] {
			if a.first < b.end && b.first < a.end {
				t.Errorf("samples %d and %d share units", a.sample, b.sample)
			}
		}
	}
	if seg.HasSlotTable() {
		from := uint64(shm.FreeFrom(seg.FreeFrom().Load()).From())
		for s := range seg.Slots {
			named := seg.SlotSample(s).Load()
			sample, taken := held[s]
			switch {
			case named != 0 && (!taken || sample != named-1):
				t.Errorf("slot %d is lost: its table names sample %d, which does not have it", s, named-1)
			case named == 0 && taken:
				t.Errorf("slot %d of sample %d is free by its table", s, sample)
			case named == 0 && s < from:
				t.Errorf("slot %d is free, and overlooked: the search begins at %d", s, from)
			}
		}
	}
	checkIdle(t, seg)
}

// checkIdle checks that no claim is listed and no clear is unfinished.
func checkIdle(t testing.TB, seg *shm.Segment) {
	t.Helper()
	for r := range seg.ClientRecords {
		for e := range shm.ClaimsPerClient {
			entry, intent := seg.Claim(r, e)
			if victim := seg.Victim(r, e).Load(); entry.Load() != 0 || intent.Load() != 0 || victim != 0 {
				t.Errorf("entry %d of client %d is left with sample+1 %d, intent %#x, victim+1 %d", e, r+1,
					entry.Load(), intent.Load(), victim)
			}
		}
	}
	if p := shm.Phase(seg.Phase().Load()); p.Clearing() {
		t.Errorf("a clear by client %d is left unfinished", p.Owner())
	}
}
