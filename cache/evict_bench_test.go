package cache_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// benchSizes are the sizes of samples in these benchmarks.
var benchSizes = []uint64{3072, 196608}

// What a set that evicts takes beside an overwrite of a READY sample:
//
//	go test ./cache -run '^$' -bench 'Evict' -benchtime 300x
func BenchmarkEvict(b *testing.B) {
	for _, size := range benchSizes {
		slots := 64 << 20 / size / 4
		o := shm.Options{Samples: 4 * slots, Slots: slots, SampleBytes: size}
		data := make([]byte, size)
		for policy := shm.PolicyCost; policy <= shm.PolicyLFU; policy++ {
			b.Run(fmt.Sprintf("%d/%s", size, policy), func(b *testing.B) {
				plain := full(b, o, data)
				evicting := o
				evicting.Policy = policy
				c := full(b, evicting, data)
				before, sets := stats(b, c).Evicted, 0
				beside(b, func(n int) {
					if r, err := plain.Set(n*7919%int(slots), data, cache.Overwrite); r != cache.Stored || err != nil {
						b.Fatal(r, err)
					}
				}, func(n int) {
					// each costs more than those before, so that the policy cost evicts too
					r, err := c.SetLoaded((n+int(slots))%int(o.Samples), [][]byte{data}, 0, time.Duration(n+2)*time.Millisecond)
					if err != nil || r == cache.Busy {
						b.Fatal(r, err)
					}
					sets++
				})
				b.ReportMetric(float64(stats(b, c).Evicted-before)/float64(sets), "evicted/set")
			})
		}
	}
}

// What a hit takes in a cache that evicts, beside one in a first-come cache.
func BenchmarkEvictHit(b *testing.B) {
	for _, size := range benchSizes {
		slots := 64 << 20 / size / 4
		o := shm.Options{Samples: slots, Slots: slots, SampleBytes: size}
		data := make([]byte, size)
		for policy := shm.PolicyCost; policy <= shm.PolicyLFU; policy++ {
			b.Run(fmt.Sprintf("%d/%s", size, policy), func(b *testing.B) {
				plain := full(b, o, data)
				evicting := o
				evicting.Policy = policy
				get := func(c *cache.Cache) func(int) {
					return func(n int) {
						if _, hit, err := c.Get(n*7919%int(slots), data); !hit || err != nil {
							b.Fatal(hit, err)
						}
					}
				}
				beside(b, get(plain), get(full(b, evicting, data)))
			})
		}
	}
}

// beside calls two functions in turn, each some hundred times a turn, so that both run on the same
// machine at the same time. It reports the medians of their times, and of the ratios of turns.
func beside(b *testing.B, theirs, ours func(n int)) {
	const calls = 200
	var before, after, ratios []float64
	turn := func(call func(n int), first int) float64 {
		start := time.Now()
		for n := first; n < first+calls; n++ {
			call(n)
		}
		return float64(time.Since(start).Nanoseconds()) / calls
	}
	for k := 0; b.Loop(); k++ {
		var first, second float64
		if k%2 == 0 { // neither is always the first
			first, second = turn(theirs, k*calls), turn(ours, k*calls)
		} else {
			second, first = turn(ours, k*calls), turn(theirs, k*calls)
		}
		before, after, ratios = append(before, first), append(after, second), append(ratios, second/first)
	}
	middle := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(middle(before), "ns/theirs")
	b.ReportMetric(middle(after), "ns/ours")
	b.ReportMetric(middle(ratios), "ratio")
	b.ReportMetric(ratios[len(ratios)/4], "ratio-p25")
	b.ReportMetric(ratios[len(ratios)*3/4], "ratio-p75")
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
