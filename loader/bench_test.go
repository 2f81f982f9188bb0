package loader_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// BenchmarkAllHit compares batches of hits with gathers alone, into the same number of buffers.
// Times are for one batch.
func BenchmarkAllHit(b *testing.B) {
	for _, z := range []struct{ samples, bytes, batch int }{{1500, 196608, 64}, {50000, 3072, 256}} {
		c := fatal.Value(client.Create("", client.Options{Samples: z.samples, SampleBytes: z.bytes}))(b)
		row := make([]byte, z.bytes)
		for i := range z.samples {
			row[i%z.bytes]++
			if r, err := c.Set(i, row, 0); r != client.Stored || err != nil {
				b.Fatal(r, err)
			}
		}
		indices := wanted(b, order.Order{Samples: uint64(z.samples), Kind: order.Shuffled, Seed: 7}, 0, order.Shard{})
		threads := runtime.GOMAXPROCS(0)
		b.Run(fmt.Sprint(z.bytes, "/gather"), func(b *testing.B) {
			var buffers [4][]byte
			for k := range buffers {
				buffers[k] = make([]byte, z.batch*z.bytes)
			}
			b.SetBytes(int64(z.batch * z.bytes))
			for n := 0; b.Loop(); n++ {
				first := n % (z.samples / z.batch) * z.batch
				if hits, err := c.Gather(indices[first:first+z.batch], buffers[n%len(buffers)], client.GatherOptions{Stride: z.bytes, Threads: threads}); hits != z.batch || err != nil {
					b.Fatal(hits, err)
				}
			}
		})
		b.Run(fmt.Sprint(z.bytes, "/batches"), func(b *testing.B) {
			l, err := loader.New(loader.FromCache(c, nothing),
				loader.Options{BatchSize: z.batch, DropLast: true, Threads: threads,
					Order: order.Order{Kind: order.Shuffled, Seed: 7}})
			fatal.If(b, err)
			b.SetBytes(int64(z.batch * z.bytes))
			b.ResetTimer()
			for n := 0; n < b.N; {
				for batch, err := range l.Batches(context.Background()) {
					fatal.If(b, err)
					batch.Release()
					if n++; n == b.N {
						break
					}
				}
			}
		})
		c.Close()
	}
}

func nothing(context.Context, int, []byte) ([]byte, error) { panic("a miss") }

// BenchmarkWorkers loads samples that sleep for 1 ms. Times are for one sample; ideal/op is the
// time without any overhead.
func BenchmarkWorkers(b *testing.B) {
	const latency = time.Millisecond
	for workers := 1; workers <= 8; workers++ {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			d := newDataset(1<<20, 64)
			d.latency = latency
			l := fatal.Value(loader.New(loader.FromSource(d), loader.Options{BatchSize: 32, Workers: workers}))(b)
			b.ResetTimer()
			for n := 0; n < b.N; {
				for batch, err := range l.Batches(context.Background()) {
					fatal.If(b, err)
					n += batch.Len()
					batch.Release()
					if n >= b.N {
						break
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*float64(workers)/1e6, "ms-of-a-worker/op")
		})
	}
}
