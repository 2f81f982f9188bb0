package cache_test

import (
	"math"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that Stats says how many samples the last as many reads as there are samples have replaced, by any clients,
// also after their end.
func TestReplaced(t *testing.T) {
	const samples, slots = 2000, 200
	for _, variable := range []bool{false, true} {
		o := shm.Options{Samples: samples, Slots: slots, SampleBytes: 64, Policy: shm.PolicyFIFO}
		if variable {
			o = chained(t, shm.PolicyFIFO, samples, slots, 64)
		}
		seg := mapped(t, o)
		clients := []*cache.Cache{attach(t, seg), attach(t, seg)}
		data, dst := make([]byte, 64), make([]byte, 64)
		replaced := func() uint64 {
			t.Helper()
			c := attach(t, seg)
			defer c.Close()
			s := fatal.Value(c.Stats())(t)
			return s.Replaced
		}
		// read reads samples in turn by both clients, and sets so many of the misses, evenly.
		at := 0
		read := func(n, sets int) {
			t.Helper()
			for k := range n {
				c := clients[k%2]
				i := at % samples
				at++
				_, hit, err := c.Get(i, dst)
				fatal.If(t, err)
				if !hit && k*sets/n != (k+1)*sets/n {
					set(t, c, i, data, 0, cache.Stored)
				}
			}
		}
		near := func(want float64) {
			t.Helper()
			if got := float64(replaced()); math.Abs(got-want) > 0.1*samples { // a lap may be 128 evictions longer
				t.Errorf("variable %v, after %d reads: %g replaced, want %g", variable, at, got, want)
			}
		}
		read(samples/2, samples/2)
		near(samples/2 - slots)
		read(samples/2, samples/2)
		near(samples - slots)
		read(samples, samples)
		near(samples)
		read(2*samples, 2*samples)
		near(samples)
		read(samples, samples/4)
		read(samples, samples/4)
		near(samples / 4)
		read(3*samples, 0) // none: it is the mean since
		if n := replaced(); n > samples/8 {
			t.Errorf("%d replaced though no set came for three epochs", n)
		}
		for _, c := range clients {
			c.Close()
		}
		if n := replaced(); n > samples/8 {
			t.Errorf("%d replaced after the end of all clients", n)
		}
	}
}
