//go:build !race

package loader_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// A batch costs no allocation if all its samples are hits and it is released.
func TestNoAllocations(t *testing.T) {
	for _, bytes := range []int{2000, 0} {
		for _, o := range []order.Order{{}, {Kind: order.Shuffled}, {Kind: order.Blocks, Block: 16, Window: 4},
			{Kind: order.Windows, Window: 500}} {
			const samples, size = 8000, 8
			d := newDataset(samples, bytes)
			c := newCache(t, d, samples)
			fill(t, c, d, func(int) bool { return true })
			l := fatal.Value(loader.New(cached(t, c, d), loader.Options{BatchSize: size, Threads: 2, Order: o}))(t)
			loop := func() {
				for b, err := range l.Batches(context.Background()) {
					fatal.If(t, err)
					b.Release()
				}
			}
			loop()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			loop()
			runtime.ReadMemStats(&after)
			// A loop itself (goroutines, channels) and the runtime allocate some dozens; one
			// allocation a batch would be 1,000.
			if n := after.Mallocs - before.Mallocs; n > 200 {
				t.Errorf("%d bytes, %v: %d allocations for %d batches", bytes, o.Kind, n, samples/size)
			}
		}
	}
}
