package cache_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// A sample can be filled in pieces, in any order, with gaps. No reader sees it before the publish,
// and its checksum is that of all its bytes.
func TestPieces(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		c, other := attach(t, seg), attach(t, seg)
		want := payload(3, 0, 1000)
		for name, pieces := range map[string][][2]int{
			"in order": {{0, 400}, {400, 401}, {401, 1000}},
			"reverse":  {{500, 1000}, {0, 500}},
			"overlap":  {{0, 600}, {300, 1000}},
			"one":      {{0, 1000}},
			"bytes":    {{0, 1}, {1, 2}, {2, 1000}},
		} {
			k, r, err := c.Claim(3, 1000, cache.Overwrite)
			if r != cache.Stored || err != nil {
				t.Fatal(name, r, err)
			}
			if k.Sample() != 3 || k.Len() != 1000 {
				t.Error(k.Sample(), k.Len())
			}
			for _, p := range pieces {
				fatal.Gives(k.WriteAt(want[p[0]:p[1]], int64(p[0])))(t, p[1]-p[0], name)
			}
			wantMiss(t, c, 3)
			set(t, other, 3, want, 0, cache.Busy)
			set(t, c, 3, want, cache.Overwrite, cache.Busy)
			for _, bad := range [][2]int64{{-1, 1}, {1000, 1}, {999, 2}, {1001, 0}, {1 << 62, 1}} {
				if _, err := k.WriteAt(make([]byte, bad[1]), bad[0]); !errors.Is(err, shm.ErrSchema) {
					t.Errorf("a piece of %d bytes at %d: %v", bad[1], bad[0], err)
				}
			}
			if err := k.Publish(); err != nil {
				t.Fatal(name, err)
			}
			wantSample(t, other, 3, want)
			if v, err := c.Verify(0, 16); v.Checked != 1 || v.Corrupt != 0 || err != nil {
				t.Errorf("%s: %+v, %v", name, v, err)
			}
			expect.Fails(k.WriteAt(want, 0))(t, shm.ErrInvalid)
			expect.Error(t, k.Publish(), shm.ErrInvalid)
			expect.NoError(t, k.Abort())
		}
		wantSample(t, other, 3, want)
		if s := stats(t, c); s.Stored != 5 || s.Aborted != 0 || s.ArenaLostBytes != 0 {
			t.Errorf("%+v", s)
		}
		checkSound(t, seg)

		// Bytes that were never written are zeros, and have pages.
		k, r, err := c.Claim(4, 1000, 0)
		if r != cache.Stored {
			t.Fatal(r, err)
		}
		k.WriteAt([]byte("middle"), 500)
		fatal.If(t, k.Publish())
		gaps := make([]byte, 1000)
		copy(gaps[500:], "middle")
		wantSample(t, other, 4, gaps)
		if m := shm.Meta(seg.Meta(4).Load()); seg.Checksum(4, m) != crc32.Checksum(gaps, shm.Castagnoli) || seg.Length(m) != 1000 {
			t.Errorf("meta %x", m)
		}
		checkSound(t, seg)
	})
}

// Abort frees the slot for any sample; an extent stays with its sample.
func TestAbort(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		c := attach(t, seg)
		for range 30 { // more often than the number of slots
			k, r, err := c.Claim(3, 1000, 0)
			if r != cache.Stored || err != nil {
				t.Fatal(r, err)
			}
			k.WriteAt(payload(9, 9, 10), 0)
			fatal.If(t, k.Abort())
			wantMiss(t, c, 3)
			checkSound(t, seg)
		}
		set(t, c, 3, payload(3, 0, 1000), 0, cache.Stored)
		k, _, _ := c.Claim(3, 1000, cache.Overwrite)
		fatal.If(t, k.Abort())
		wantMiss(t, c, 3) // the old bytes may be gone: after an aborted overwrite the sample is EMPTY
		for i := range 8 {
			set(t, c, i, payload(i, 0, 1000), 0, cache.Stored)
		}
		s := stats(t, c)
		if s.Aborted != 31 || s.Ready != 8 {
			t.Errorf("%+v", s)
		}
		if want := 8 * shm.UnitsFor(1000) * shm.UnitBytes; seg.Variable() && (s.ArenaNextBytes != want || s.ArenaLostBytes != 0) {
			t.Errorf("%d bytes of the arena for 8 samples, %d lost; want %d, 0", s.ArenaNextBytes, s.ArenaLostBytes, want)
		}
		checkSound(t, seg)
	})
}

// A claim allocates its memory at once, so that an unwritten part is zeros and no hole, for which a
// read through the map would allocate pages.
func TestClaimTakesMemory(t *testing.T) {
	const size = 2 << 20 // a huge page is allocated as a whole, if there are any
	seg := mapped(t, shm.Options{Samples: 4, SampleBytes: size})
	c := attach(t, seg)
	before := stats(t, c).AllocatedBytes
	k, r, err := c.Claim(2, size, 0)
	if r != cache.Stored {
		t.Fatal(r, err)
	}
	expect.Equal(t, stats(t, c).AllocatedBytes, before+size, "bytes of pages after a claim of %d", size)
	expect.NoError(t, k.Publish())
	wantSample(t, c, 2, make([]byte, size))
	expect.Equal(t, stats(t, c).AllocatedBytes, before+size, "bytes of pages after reads")
}

// The client table shows live clients and those that have ended.
func TestClients(t *testing.T) {
	seg := named(t, shm.Options{Samples: 4, SampleBytes: 8})
	c := attach(t, seg)
	d, err := cache.Attach(seg, cache.Options{Label: "a label that is far too long for the sixty-three bytes that there are of it", Kind: shm.KindServer})
	fatal.If(t, err)
	if _, _, err := d.Claim(1, 8, 0); err != nil {
		t.Fatal(err)
	}
	look := func() cache.ClientInfo {
		t.Helper()
		list, err := c.Clients()
		if err != nil || len(list) != 2 || list[0].Label != t.Name() || list[0].Kind != shm.KindGo || !list[0].Live {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[1]
	}
	now := look()
	if now.Record != 1 || !now.Live || now.PID != uint32(os.Getpid()) || now.Kind != shm.KindServer ||
		now.Claims != 1 || now.Registrations != 1 ||
		now.Label != "a label that is far too long for the sixty-three bytes that the" || now.StartTicks == 0 ||
		now.PIDNamespace == 0 || time.Since(now.Registered) > time.Minute {
		t.Errorf("%+v", now)
	}
	fatal.If(t, d.Close())
	if then := look(); then.Live || then.PID != 0 || then.Kind != shm.KindServer || then.Claims != 0 ||
		then.Label != now.Label {
		t.Errorf("after close: %+v", then)
	}
}

// A client has at most 32 open claims. More are BUSY; for another client only the same samples are.
func TestClaimLimit(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 100, SampleBytes: 10})
	c, other := attach(t, seg), attach(t, seg)
	var open []*cache.Claim
	for i := range shm.ClaimsPerClient {
		k, r, err := c.Claim(i, 10, 0)
		if r != cache.Stored {
			t.Fatal(i, r, err)
		}
		open = append(open, k)
	}
	if k, r, err := c.Claim(50, 10, 0); k != nil || r != cache.Busy || err != nil {
		t.Errorf("claim 33: %v, %v", r, err)
	}
	set(t, c, 50, make([]byte, 10), 0, cache.Busy)
	set(t, other, 50, make([]byte, 10), 0, cache.Stored)
	set(t, other, 31, make([]byte, 10), 0, cache.Busy)
	open[7].Abort()
	set(t, c, 51, make([]byte, 10), 0, cache.Stored)
	for n, k := range open {
		if n == len(open)-1 { // the one in the last entry is in the way of a clear as well
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			expect.Fails(other.Clear(ended))(t, shm.ErrTimeout, "1 claims")
		}
		expect.NoError(t, k.Abort())
	}
	checkSound(t, seg)
}

// Close aborts open claims at once.
func TestCloseAborts(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		other := attach(t, seg)
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		k, _, _ := c.Claim(3, 1000, 0)
		fatal.If(t, c.Close())
		checkSound(t, seg)
		expect.Error(t, k.Publish(), shm.ErrClosed)
		set(t, other, 3, payload(3, 0, 1000), 0, cache.Stored)
		if s := stats(t, other); s.Aborted != 1 || s.Recovered != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A publish is refused and counted if another client has changed the word. The test forces that,
// because the rules do not allow it.
func TestZombiePublish(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		c := attach(t, seg)
		k, r, err := c.Claim(3, 1000, 0)
		if r != cache.Stored {
			t.Fatal(r, err)
		}
		k.WriteAt(payload(3, 0, 1000), 0)
		layout := seg.WordLayout()
		w := shm.Word(seg.Word(3).Load())
		taken := layout.Pack(shm.Empty, 0, layout.Generation(w)+1, 0) // as if another client had reclaimed it
		seg.Word(3).Store(uint64(taken))
		expect.Error(t, k.Publish(), shm.ErrLost)
		expect.Equal(t, fmt.Sprintf("%x", seg.Word(3).Load()), fmt.Sprintf("%x", uint64(taken)), "the word")
		wantMiss(t, c, 3)
		if s := stats(t, c); s.Lost != 1 || s.Stored != 0 || s.Ready != 0 {
			t.Errorf("%+v", s)
		}
		set(t, c, 3, payload(3, 1, 1000), 0, cache.Stored)
		wantSample(t, c, 3, payload(3, 1, 1000))
		k, _, _ = c.Claim(5, 1000, 0)
		seg.Word(5).Store(uint64(taken))
		expect.Error(t, k.Abort(), shm.ErrLost)
		if seg.Word(5).Load() != uint64(taken) {
			t.Error("an abort changed a word that was not its own")
		}
	})
}

// Generations wrap around: all operations work with words just below the limit, and a claim from
// before the wrap is refused after it.
func TestGenerationsWrapAround(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		layout := seg.WordLayout()
		last := layout.GenerationMask()
		if bits := map[bool]uint64{false: 1<<17 - 1, true: 1<<13 - 1}[seg.Variable()]; last != bits {
			t.Fatalf("generations end at %d, want %d", last, bits)
		}
		for i := range seg.Samples {
			seg.Word(i).Store(uint64(layout.Pack(shm.Empty, 0, last-2, 0)))
		}
		c := attach(t, seg)
		var seen []uint64
		for version := range 6 {
			set(t, c, 3, payload(3, version, 1000), cache.Overwrite, cache.Stored)
			wantSample(t, c, 3, payload(3, version, 1000))
			seen = append(seen, layout.Generation(shm.Word(seg.Word(3).Load())))
			checkSound(t, seg)
		}
		expect.Slice(t, seen, []uint64{last - 2, last - 1, last, 0, 1, 2}, "generations")
		if s := stats(t, c); s.ArenaLostBytes != 0 || s.Ready != 1 {
			t.Errorf("a generation ran over into the place: %+v", s)
		}
		for range 5 { // past the wrap, by aborts
			k, r, err := c.Claim(4, 1000, 0)
			if r != cache.Stored {
				t.Fatal(r, err)
			}
			k.Abort()
		}
		expect.Equal(t, layout.Generation(shm.Word(seg.Word(4).Load())), 2, "generation after five aborts from %d", last-2)
		for range 5 { // and by clears
			set(t, c, 5, payload(5, 0, 1000), 0, cache.Stored)
			fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
		}
		expect.Equal(t, layout.Generation(shm.Word(seg.Word(5).Load())), 2, "generation after five clears from %d", last-2)
		checkSound(t, seg)
		// The number of freed slots wraps around too.
		if seg.HasSlotTable() {
			seg.FreeFrom().Store(uint64(shm.NewFreeFrom(1<<32-1, 0)))
			k, _, _ := c.Claim(4, 1000, 0)
			k.Abort()
			if f := shm.FreeFrom(seg.FreeFrom().Load()); f.Seq() != 0 || f.From() != 0 {
				t.Errorf("free_from %d, %d", f.Seq(), f.From())
			}
			for i := range 8 {
				set(t, c, i, payload(i, 0, 1000), 0, cache.Stored)
			}
			checkSound(t, seg)
		}
	})
}
