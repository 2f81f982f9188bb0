package cache_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
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
		// So many that none is loaded twice: cost sees no noise then, and each evicts.
		o := shm.Options{Samples: 4*slots + 8192, Slots: slots, SampleBytes: size}
		data := make([]byte, size)
		for _, policy := range shm.EvictingPolicies() {
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
					// each costs more than those before, by 30 % every 85 sets, so that the policy cost evicts too
					took := time.Duration(float64(time.Millisecond) * math.Pow(1.3, float64(n)/85))
					r, err := c.SetLoaded((n+int(slots))%int(o.Samples), [][]byte{data}, 0, min(took, time.Hour))
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
	runs := 0
	for _, size := range benchSizes {
		slots := 64 << 20 / size / 4
		o := shm.Options{Samples: slots, Slots: slots, SampleBytes: size}
		data := make([]byte, size)
		for _, policy := range shm.EvictingPolicies() {
			b.Run(fmt.Sprintf("%d/%s", size, policy), func(b *testing.B) {
				evicting := o
				evicting.Policy = policy
				made := []shm.Options{o, evicting} // the one that is made first may get other pages
				if runs++; runs%2 == 0 {
					slices.Reverse(made)
				}
				first, second := full(b, made[0], data), full(b, made[1], data)
				plain, evicts := first, second
				if runs%2 == 0 {
					plain, evicts = second, first
				}
				get := func(c *cache.Cache) func(int) {
					return func(n int) {
						if _, hit, err := c.Get(n*7919%int(slots), data); !hit || err != nil {
							b.Fatal(hit, err)
						}
					}
				}
				for n := range 8 * int(slots) { // the first hits of a slot write its reference byte
					get(evicts)(n)
					get(plain)(n)
				}
				beside(b, get(plain), get(evicts))
			})
		}
	}
}

// How hits scale that write reference bytes: the throughput of two clients beside that of one. Reads are
// Zipf-distributed, so both clients hit the same few slots.
func BenchmarkEvictScaling(b *testing.B) {
	const size, slots, hits = 3072, 5000, 20_000
	for _, policy := range []shm.Policy{shm.PolicyFirstCome, shm.PolicyClock, shm.PolicyLRU, shm.PolicyLFU} {
		b.Run(policy.String(), func(b *testing.B) {
			seg := mapped(b, shm.Options{Samples: slots, Slots: slots, SampleBytes: size, Policy: policy})
			clients := []*cache.Cache{attach(b, seg), attach(b, seg)}
			for i := range slots {
				set(b, clients[0], i, make([]byte, size), 0, cache.Stored)
			}
			read := func(c *cache.Cache, seed uint64) {
				zipf := rand.NewZipf(rand.New(rand.NewPCG(seed, 0)), 1.1, 1, slots-1)
				dst := make([]byte, size)
				for range hits {
					if _, hit, err := c.Get(int(zipf.Uint64()), dst); !hit || err != nil {
						b.Error(hit, err)
					}
				}
			}
			var ratios []float64
			for k := uint64(0); b.Loop(); k++ {
				start := time.Now()
				read(clients[0], k)
				one := time.Since(start)
				start = time.Now()
				var both sync.WaitGroup
				for n, c := range clients {
					both.Go(func() { read(c, k+uint64(n)) })
				}
				both.Wait()
				ratios = append(ratios, 2*float64(one)/float64(time.Since(start)))
			}
			slices.Sort(ratios)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratios[len(ratios)/2], "speed-up")
		})
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

// beside calls two functions in turn, each some hundred times a turn, so that both run on the same
// machine at the same time. It reports the medians of their times, and of the ratios of turns, also of the processor
// time of the thread: other programs do not count there.
func beside(b *testing.B, theirs, ours func(n int)) {
	const calls = 200
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after, ratios, processor []float64
	turn := func(call func(n int), first int) (wall, cpu float64) {
		start, used := time.Now(), threadTime(b)
		for n := first; n < first+calls; n++ {
			call(n)
		}
		return float64(time.Since(start).Nanoseconds()) / calls, float64(threadTime(b)-used) / calls
	}
	for k := 0; b.Loop(); k++ {
		var first, second, firstUsed, secondUsed float64
		if k%2 == 0 { // neither is always the first
			first, firstUsed = turn(theirs, k*calls)
			second, secondUsed = turn(ours, k*calls)
		} else {
			second, secondUsed = turn(ours, k*calls)
			first, firstUsed = turn(theirs, k*calls)
		}
		before, after, ratios = append(before, first), append(after, second), append(ratios, second/first)
		processor = append(processor, secondUsed/firstUsed)
	}
	middle := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(middle(before), "ns/theirs")
	b.ReportMetric(middle(after), "ns/ours")
	b.ReportMetric(middle(ratios), "ratio")
	b.ReportMetric(middle(processor), "cpu-ratio")
	b.ReportMetric(ratios[len(ratios)/4], "ratio-p25")
	b.ReportMetric(ratios[len(ratios)*3/4], "ratio-p75")
}

// threadTime is the processor time of this thread.
func threadTime(b *testing.B) time.Duration {
	var now unix.Timespec
	fatal.If(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
	return time.Duration(now.Nano())
}

// full returns a cache whose slots hold the first samples.
func full(b *testing.B, o shm.Options, data []byte) *cache.Cache {
	c := fatal.Value(cache.Attach(mapped(b, o), cache.Options{Next: invented}))(b)
	b.Cleanup(func() { c.Close() })
	for i := range int(o.Slots) {
		if r, err := c.SetLoaded(i, [][]byte{data}, 0, time.Millisecond); r != cache.Stored || err != nil {
			b.Fatal(r, err)
		}
	}
	return c
}
