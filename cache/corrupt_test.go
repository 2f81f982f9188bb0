package cache_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// A READY word whose place or length is impossible is an error for every reader, and a clear repairs it.
func TestImpossibleWords(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		c := attach(t, seg)
		buffer, places := make([]byte, 2000), seg.Slots
		if seg.Variable() {
			places = seg.Units()
		}
		for _, bad := range []struct{ place, length uint64 }{{0, 1000}, {places + 1, 1000}, {1 << 31, 1000},
			{places, 1000}, {1, 1001}, {1, 1<<32 - 1}} {
			if !seg.Variable() && bad.place > 0 && bad.place <= places {
				continue // slots have one length
			}
			seg.Word(3).Store(uint64(seg.WordLayout().Pack(shm.Ready, 0, 1, bad.place)))
			seg.Meta(3).Store(uint64(shm.NewMeta(uint32(bad.length), 0)))
			_, hit, err := c.Get(3, buffer)
			_, hit2, err2 := c.View(3)
			if hit || hit2 || !errors.Is(err, shm.ErrCorrupt) || !errors.Is(err2, shm.ErrCorrupt) {
				t.Errorf("%+v: get: %v, %v; view: %v, %v", bad, hit, err, hit2, err2)
			}
			if v, err := c.Verify(0, 16); v.Corrupt != 1 || err != nil {
				t.Errorf("%+v: %+v, %v", bad, v, err)
			}
			if _, err := c.Set(3, buffer[:1000], cache.Overwrite); err != nil && !errors.Is(err, shm.ErrCorrupt) {
				t.Errorf("%+v: set: %v", bad, err)
			}
			fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
			checkSound(t, seg)
		}
	})
}

// The checksum finds a changed byte of a READY sample, and the sample is counted.
func TestVerifyFindsDamage(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		c := attach(t, seg)
		for i := range 8 {
			set(t, c, i, payload(i, 0, 1000), 0, cache.Stored)
		}
		expect.Gives(c.Verify(0, 16))(t, (cache.Verification{Checked: 8, Bad: -1}))
		place := seg.WordLayout().Place(shm.Word(seg.Word(5).Load())) - 1
		fatal.Value(seg.WritePayload([]byte{payload(5, 0, 1000)[999] ^ 1}, place*seg.SlotStride+999))(t)
		expect.Gives(c.Verify(0, 16))(t, (cache.Verification{Checked: 8, Corrupt: 1, Bad: 5}))
		expect.Gives(c.Verify(6, 2))(t, (cache.Verification{Checked: 2, Bad: -1}))
		if s := stats(t, c); s.Corrupt != 1 || s.Hits != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Peek reads a slot in any state, and allocates no pages.
func TestPeek(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 400, Slots: 300, SampleBytes: 100000, Policy: shm.PolicyFirstIndices})
	c := attach(t, seg)
	before := stats(t, c)
	buffer := payload(1, 1, 100000)
	for i := range 300 {
		if n, hit, err := c.Peek(i, buffer); n != 100000 || !hit || err != nil || buffer[0] != 0 || buffer[99999] != 0 {
			t.Fatal(n, hit, err, buffer[0])
		}
	}
	if _, hit, err := c.Peek(300, buffer); hit || err != nil {
		t.Error(hit, err)
	}
	expect.Equal(t, stats(t, c), before, "statistics after a peek")
	k, _, _ := c.Claim(7, 100000, 0)
	k.WriteAt([]byte("half"), 0)
	if _, hit, err := c.Peek(7, buffer); !hit || err != nil || string(buffer[:4]) != "half" {
		t.Error(hit, err, buffer[:4])
	}
	k.Abort()
	if _, _, err := c.Peek(7, buffer[:99999]); !errors.Is(err, shm.ErrSchema) {
		t.Error(err)
	}
	first := attach(t, mapped(t, shm.Options{Samples: 4, SampleBytes: 10}))
	set(t, first, 2, []byte("0123456789"), 0, cache.Stored)
	if n, hit, err := first.Peek(2, buffer); n != 10 || !hit || err != nil || string(buffer[:10]) != "0123456789" {
		t.Error(n, hit, err)
	}
	if _, hit, err := first.Peek(1, buffer); hit || err != nil {
		t.Error(hit, err)
	}
	arena := attach(t, mapped(t, shm.Options{Samples: 4, Variable: true, Limit: 5 << 20}))
	if _, _, err := arena.Peek(2, buffer); !errors.Is(err, shm.ErrSchema) {
		t.Error(err)
	}
}

// The phase has an impossible state with this client's number. The next set ends it, like the clear
// of the number's last owner.
func TestCorruptPhaseOfOurs(t *testing.T) {
	for state := uint64(1); state < 8; state++ {
		seg := fatal.Value(shm.NewHeap(shm.Options{Samples: 4, SampleBytes: 8}))(t)
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		seg.Phase().Store(state | uint64(c.Owner())<<3)
		done := make(chan struct{})
		go func() {
			defer close(done)
			expect.Gives(c.Set(1, make([]byte, 8), 0))(t, cache.Stored, state)
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("state %d: Set does not come back", state)
		}
		expect.NoError(t, c.Close())
		expect.NoError(t, seg.Close())
	}
}

// A word of first-indices that names another slot is found by Verify, and misleads no write.
func TestVerifyFindsAnotherSlot(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 8, Slots: 8, SampleBytes: 64, Policy: shm.PolicyFirstIndices})
	c := attach(t, seg)
	for i := range 8 {
		set(t, c, i, payload(i, 0, 64), 0, cache.Stored)
	}
	seg.Word(3).Store(seg.Word(5).Load())
	if v, err := c.Verify(0, 8); err != nil || v.Corrupt != 1 || v.Bad != 3 {
		t.Errorf("%+v, %v", v, err)
	}
	set(t, c, 3, payload(3, 1, 64), cache.Overwrite, cache.Stored)
	if v, err := c.Verify(0, 8); err != nil || v.Corrupt != 0 {
		t.Errorf("after an overwrite: %+v, %v", v, err)
	}
}
