package cache_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// Batches of 256 small samples of a large cache: the index exceeds the processor's caches.
func BenchmarkGatherSmall(b *testing.B) {
	const n, size = 300000, 3072
	c := attach(b, mapped(b, shm.Options{Samples: n, SampleBytes: size}))
	data := payload(1, 1, size)
	for i := range n {
		set(b, c, i, data, 0, cache.Stored)
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	dst, hit := make([]byte, 256*size), make([]bool, 256)
	views := make([][]byte, n)
	for i := range n {
		views[i], _, _ = c.View(i)
	}
	b.Run("gather", func(b *testing.B) {
		b.SetBytes(256 * size)
		for k := 0; b.Loop(); k++ {
			c.Gather(order[k*256%(n-256):][:256], dst, cache.GatherOptions{Stride: size, Hit: hit})
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(256 * size)
		for k := 0; b.Loop(); k++ {
			for j, i := range order[k*256%(n-256):][:256] {
				copy(dst[j*size:], views[i])
			}
		}
	})
}
