package cache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// What a set that evicts takes beside an overwrite of a READY sample, and a hit in a cache that evicts
// beside one in a first-come cache:
//
//	go test ./cache -run '^$' -bench 'Evict' -count 21
func BenchmarkEvict(b *testing.B) {
	for _, size := range []uint64{3072, 196608} {
		slots := 64 << 20 / size / 4
		o := shm.Options{Samples: 4 * slots, Slots: slots, SampleBytes: size}
		data := make([]byte, size)
		b.Run(fmt.Sprintf("%d/overwrite", size), func(b *testing.B) {
			c := full(b, o, data)
			for n := 0; b.Loop(); n++ {
				if r, err := c.Set(n%int(slots), data, cache.Overwrite); r != cache.Stored || err != nil {
					b.Fatal(r, err)
				}
			}
		})
		for policy := shm.PolicyCost; policy <= shm.PolicyLFU; policy++ {
			o.Policy = policy
			b.Run(fmt.Sprintf("%d/%s", size, policy), func(b *testing.B) {
				c := full(b, o, data)
				n := int(slots)
				for b.Loop() {
					// each costs more than those before, so that the policy cost evicts too
					r, err := c.SetLoaded(n%int(o.Samples), [][]byte{data}, 0, time.Duration(n)*time.Millisecond)
					if err != nil || r == cache.Busy {
						b.Fatal(r, err)
					}
					n++
				}
				b.ReportMetric(float64(stats(b, c).Evicted)/float64(b.N), "evicted/op")
			})
		}
	}
}

func BenchmarkEvictHit(b *testing.B) {
	for _, size := range []uint64{3072, 196608} {
		slots := 64 << 20 / size / 4
		for policy := shm.PolicyFirstCome; policy <= shm.PolicyLFU; policy++ {
			if policy == shm.PolicyFirstIndices {
				continue
			}
			o := shm.Options{Samples: slots, Slots: slots, SampleBytes: size, Policy: policy}
			data := make([]byte, size)
			b.Run(fmt.Sprintf("%d/%s", size, policy), func(b *testing.B) {
				c := full(b, o, data)
				for n := 0; b.Loop(); n++ {
					if _, hit, err := c.Get(n*7919%int(slots), data); !hit || err != nil {
						b.Fatal(hit, err)
					}
				}
			})
		}
	}
}

// The same in an arena that evicts, with the slots that it has of a known sample, after many evictions.
func BenchmarkEvictChains(b *testing.B) {
	for _, size := range []uint64{3072, 100_000, 196_608} {
		samples := 64 << 20 / size
		data := make([]byte, 2*size)
		length := func(n int) int { return int(size/2) + n*7919%int(size) }
		stride := uint64(64)
		for stride*2 <= size/16 {
			stride *= 2
		}
		c := attach(b, mapped(b, chained(b, shm.PolicyRandom, samples, 16<<20/stride, stride)))
		n := 0
		set := func(b *testing.B) {
			r, err := c.Set(n%int(samples), data[:length(n%int(samples))], 0)
			if err != nil || r == cache.Busy || r == cache.Full {
				b.Fatal(r, err)
			}
			n++
		}
		b.Run(fmt.Sprintf("%d/set", size), func(b *testing.B) {
			for range 10 * samples {
				set(b)
			}
			before := stats(b, c).Evicted
			for b.Loop() {
				set(b)
			}
			b.ReportMetric(float64(stats(b, c).Evicted-before)/float64(b.N), "evicted/op")
		})
		b.Run(fmt.Sprintf("%d/hit", size), func(b *testing.B) {
			var ready []int
			for i := range int(samples) {
				if s, _ := c.State(i); s == cache.StateReady {
					ready = append(ready, i)
				}
			}
			for n := 0; b.Loop(); n++ {
				if _, hit, err := c.Get(ready[n*7919%len(ready)], data); !hit || err != nil {
					b.Fatal(hit, err)
				}
			}
		})
	}
}

// full returns a cache whose slots hold the first samples.
func full(b *testing.B, o shm.Options, data []byte) *cache.Cache {
	c := attach(b, mapped(b, o))
	for i := range int(o.Slots) {
		if r, err := c.SetLoaded(i, [][]byte{data}, 0, time.Millisecond); r != cache.Stored || err != nil {
			b.Fatal(r, err)
		}
	}
	return c
}
