package cache

import (
	"testing"

	"github.com/stocached/stocached/shm"
)

// created makes a cache and a client of it.
func created(t *testing.T, o shm.Options) *Cache {
	t.Helper()
	seg, err := shm.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { seg.Close() })
	c, err := Attach(seg, Options{})
	if err != nil {
		t.Fatal(err)
	}
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
	c.allowance.Usable = func() (shm.Space, error) {
		if looks++; short {
			return shm.Space{}, nil
		}
		return shm.Space{Left: 1 << 40}, nil
	}
	data := make([]byte, size)
	set := func(i int, flags Flags, want Result) {
		t.Helper()
		if r, err := c.Set(i, data, flags); r != want || err != nil {
			t.Fatalf("set %d: %v, %v; want %v", i, r, err, want)
		}
	}
	set(0, 0, Stored)
	if looks != 1 {
		t.Errorf("looked %d times before the first fill", looks)
	}
	looks = 0
	for i := 1; i < 131; i++ {
		set(i, 0, Stored)
	}
	if looks < 130/64 || looks > 7 { // blocks of huge pages are drawn too
		t.Errorf("looked %d times in 130 MiB of fills", looks)
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
	set(5, 0, Exists)
	set(5, Overwrite, Stored)
	short = false
	set(199, 0, Stored)
}

// A full cache evicts without new memory. While memory is short and slots are free, a set evicts,
// and takes no free slot.
func TestEvictInShortMemory(t *testing.T) {
	c := created(t, shm.Options{Samples: 20, Slots: 4, SampleBytes: 100 << 10, Policy: shm.PolicyFIFO})
	seg := c.seg
	short := false
	c.allowance.Usable = func() (shm.Space, error) {
		if short {
			return shm.Space{}, nil
		}
		return shm.Space{Left: 64 << 20}, nil // a grant lasts for 4 MiB, a huge page and some fills
	}
	set := func(i int, want Result) Stats {
		t.Helper()
		r, err := c.Set(i, make([]byte, 100<<10), 0)
		if r != want || err != nil {
			t.Fatalf("set %d: %v, %v; want %v", i, r, err, want)
		}
		s, err := c.Stats()
		if err != nil {
			t.Fatal(err)
		}
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
	if n := seg.Drawn(c.record).Load(); n != 0 {
		t.Errorf("%d bytes are drawn and not settled", n)
	}
}
