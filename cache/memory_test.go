package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
)

// created makes a cache and a client of it.
func created(t *testing.T, o shm.Options) *Cache {
	t.Helper()
	seg := fatal.Value(shm.Create(o))(t)
	t.Cleanup(func() { seg.Close() })
	c := fatal.Value(Attach(seg, Options{}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// A client checks the memory before the first fill and after each 64 MiB. While memory is short,
// sets are FULL, but sets into allocated pages continue. All sets continue when memory is free
// again.
func TestShortMemory(t *testing.T) {
	const size = 1 << 20
	c := created(t, shm.Options{Samples: 200, SampleBytes: size})
	looks, short := 0, false
	c.allowance.Usable = func(time.Duration) (memory.Space, error) {
		if looks++; short {
			return memory.Space{}, nil
		}
		return memory.Space{Left: 1 << 40}, nil
	}
	data := make([]byte, size)
	set := func(i int, flags Flags, want Result) {
		t.Helper()
		fatal.Gives(c.Set(i, data, flags))(t, want, i)
	}
	set(0, 0, Stored)
	expect.Equal(t, looks, 1, "looks before the first fill")
	looks = 0
	for i := 1; i < 131; i++ {
		set(i, 0, Stored)
	}
	if looks < 130/64 || looks > 7 { // blocks of huge pages are drawn too
		t.Errorf("looked %d times in 130 MiB of fills", looks)
	}
	if err := c.HasMemory(size); err != nil || c.Short() != nil || c.FitsNow() != 200 {
		t.Errorf("%v, %v, %d fit", err, c.Short(), c.FitsNow())
	}
	short = true
	for i := 131; i < 199; i++ {
		if r, err := c.Set(i, data, 0); err != nil || r != Stored {
			break
		}
	}
	for range 3 {
		set(199, 0, Full)
		if k, r, err := c.Claim(199, size, 0); k != nil || r != Full || err != nil {
			t.Errorf("claim: %v, %v", r, err)
		}
	}
	stats, err := c.Stats()
	if fits := c.FitsNow(); err != nil || !errors.Is(c.HasMemory(size), shm.ErrFull) || !errors.Is(c.Short(), shm.ErrFull) ||
		fits < stats.Ready || fits >= 200 {
		t.Errorf("%v, %v, %d fit, %d are there, %v", c.HasMemory(size), c.Short(), fits, stats.Ready, err)
	}
	set(5, 0, Exists)
	set(5, Overwrite, Stored)
	short = false
	expect.NoError(t, c.Short())
	set(199, 0, Stored)
}

// A full cache evicts without new memory. While memory is short and slots are free, a set evicts,
// and takes no free slot.
func TestEvictInShortMemory(t *testing.T) {
	c := created(t, shm.Options{Samples: 20, Slots: 4, SampleBytes: 100 << 10, Policy: shm.PolicyFIFO})
	seg := c.seg
	short := false
	c.allowance.Usable = func(time.Duration) (memory.Space, error) {
		if short {
			return memory.Space{}, nil
		}
		return memory.Space{Left: 64 << 20}, nil // a grant lasts for 4 MiB, a huge page and some fills
	}
	set := func(i int, want Result) Stats {
		t.Helper()
		r, err := c.Set(i, make([]byte, 100<<10), 0)
		if r != want || err != nil {
			t.Fatalf("set %d: %v, %v; want %v", i, r, err, want)
		}
		s := fatal.Value(c.Stats())(t)
		return s
	}
	set(0, Stored)
	set(1, Stored)
	short = true
	seg.Grant(c.allowance.Group()).Store(0) // what was granted is drawn
	if s := set(2, Stored); s.Ready != 2 || s.Evicted != 1 {
		t.Errorf("%d samples, %d evicted", s.Ready, s.Evicted)
	}
	short = false
	set(3, Stored)
	if s := set(4, Stored); s.Ready != 4 || s.Evicted != 1 {
		t.Errorf("%d samples, %d evicted", s.Ready, s.Evicted)
	}
	short = true
	seg.Grant(c.allowance.Group()).Store(0)
	if s := set(5, Stored); s.Ready != 4 || s.Evicted != 2 {
		t.Errorf("%d samples, %d evicted", s.Ready, s.Evicted)
	}
	expect.Equal(t, seg.Drawn(c.record).Load(), 0, "bytes drawn and not settled")
}

// Slots whose pages exist draw nothing from the allowance: not for samples that fill less of them, not
// after a claim that is aborted, and not after those.
func TestChainsDrawOnce(t *testing.T) {
	const stride, slots = 16384, 32
	g := fatal.Value(shm.NewGeometry(shm.FlagVariable, shm.PolicyFIFO, 10, slots, stride, 8, 0))(t)
	c := created(t, shm.Options{Samples: 10, Variable: true, Policy: shm.PolicyFIFO, SlotBytes: stride,
		ClientRecords: 8, Limit: g.PayloadOffset + slots*stride})
	grant := c.seg.Grant(c.allowance.Group())
	left := uint64(0)
	for turn := range 4 { // whole slots, a byte in each sample's last slot, whole slots again
		size := 4 * stride
		if turn%2 == 1 {
			size = 2*stride + 1
		}
		for i := range 8 {
			before := grant.Load()
			fatal.Gives(c.Set(i, make([]byte, size), Overwrite))(t, Stored)
			if turn == 0 && grant.Load() == before {
				t.Errorf("the first fill of sample %d drew nothing", i)
			}
		}
		if turn == 0 {
			left = grant.Load()
		}
		expect.Equal(t, grant.Load(), left, "turn %d: the grant", turn)
	}
	k, r, err := c.Claim(8, slots*stride, 0)
	if r != Stored || err != nil {
		t.Fatal(r, err)
	}
	fatal.If(t, k.Abort())
	fatal.Gives(c.Set(9, make([]byte, slots*stride), 0))(t, Stored)
	expect.Equal(t, grant.Load(), left, "after an abort: the grant")
}
