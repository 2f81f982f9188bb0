package cache

import (
	"testing"

	"github.com/stocached/stocached/shm"
)

// A client checks the memory before the first fill and after each 64 MiB. While memory is short,
// sets are FULL, but sets into allocated pages continue. All sets continue when memory is free
// again.
func TestShortMemory(t *testing.T) {
	const size = 1 << 20
	seg, err := shm.Create(shm.Options{Samples: 200, SampleBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Close()
	c, err := Attach(seg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
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
