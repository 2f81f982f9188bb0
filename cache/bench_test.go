package cache_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// benchCache is a full cache of images as in docs and bench/: 1,024 samples of 3 x 224 x 224 bytes,
// read in random order.
func benchCache(b *testing.B) (*cache.Cache, []int, int) {
	const n, size = 1024, 3 * 224 * 224
	c := attach(b, mapped(b, shm.Options{Samples: n, SampleBytes: size}))
	data := payload(1, 1, size)
	for i := range n {
		set(b, c, i, data, 0, cache.Stored)
	}
	dst := make([]byte, size)
	for i := range n { // map the pages
		c.Get(i, dst)
	}
	return c, rand.New(rand.NewPCG(1, 2)).Perm(n), size
}

// A view with its counter: at most 25 ns.
func BenchmarkView(b *testing.B) {
	c, order, _ := benchCache(b)
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		if _, hit, _ := c.View(order[k&1023]); !hit {
			b.Fatal("miss")
		}
	}
}

// A checked copy: at most 1.1 times the time of BenchmarkCopy.
func BenchmarkGet(b *testing.B) {
	c, order, size := benchCache(b)
	dst := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		if _, hit, _ := c.Get(order[k&1023], dst); !hit {
			b.Fatal("miss")
		}
	}
}

// The bare copy of the same samples in the same order.
func BenchmarkCopy(b *testing.B) {
	c, order, size := benchCache(b)
	dst := make([]byte, size)
	views := make([][]byte, len(order))
	for i := range views {
		views[i], _, _ = c.View(i)
	}
	b.SetBytes(int64(size))
	for k := 0; b.Loop(); k++ {
		copy(dst, views[order[k&1023]])
	}
}

// A batch of 256.
func BenchmarkGather(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(map[int]string{1: "1-thread", 2: "2-threads"}[threads], func(b *testing.B) {
			c, order, size := benchCache(b)
			dst, hit := make([]byte, 256*size), make([]bool, 256)
			b.SetBytes(256 * int64(size))
			b.ReportAllocs()
			for k := 0; b.Loop(); k++ {
				c.Gather(order[k%3*256:][:256], dst, cache.GatherOptions{Stride: size, Hit: hit, Threads: threads})
			}
		})
	}
}

// A set into a slot that has its pages, with the checksum.
func BenchmarkSet(b *testing.B) {
	c, order, size := benchCache(b)
	data := payload(2, 2, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		if r, err := c.Set(order[k&1023], data, cache.Overwrite); r != cache.Stored || err != nil {
			b.Fatal(r, err)
		}
	}
}
