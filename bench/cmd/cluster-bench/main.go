// Command cluster-bench compares hits of the tier cluster with bare pipelines of go-redis: batches
// of 64 samples of 110 KiB from a Redis Cluster that is given by its addresses.
//
//	cluster-bench HOST:PORT HOST:PORT HOST:PORT
//
// "bare" is one ClusterClient.Pipeline with 64 GetToBuffer a batch. "tier" is 64 concurrent reads of
// a source with the tier, as those of the readers of a server, with checksums. Runs alternate.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
	"github.com/stocached/stocached/tier/cluster"
)

var (
	runs    = flag.Int("runs", 7, "of each")
	seconds = flag.Duration("time", 3*time.Second, "of a run")
	batch   = flag.Int("batch", 64, "samples of a batch")
	size    = flag.Int("size", 110<<10, "bytes of a sample")
	buffer  = flag.Int("buffer", 0, "bytes that a connection of bare reads ahead; 0: as go-redis has it (128 KiB)")
	samples = flag.Int("samples", 1500, "of the dataset")
)

// made is a source whose samples are made.
type made struct{}

func (made) Info() source.Info {
	return source.Info{Kind: "made", Samples: *samples, Fingerprint: "made",
		Schema: shm.Schema{SampleBytes: uint64(*size)}}
}
func (made) Size(int) (int, error) { return *size, nil }
func (made) Read(_ context.Context, i int, dst []byte) (int, error) {
	r := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})
	_, err := r.Read(dst[:*size])
	return *size, err
}
func (made) Where(i int) string { return fmt.Sprint(i) }
func (made) Close() error       { return nil }

func main() {
	flag.Parse()
	ctx := context.Background()
	var addresses []any
	for _, a := range flag.Args() {
		addresses = append(addresses, a)
	}
	about := tier.About{Cache: "bench", Info: made{}.Info(), Log: slog.New(slog.DiscardHandler)}
	opened, err := cluster.Open(source.Settings{"addresses": addresses, "timeout": "5s"}, about)
	if err != nil {
		log.Fatal(err)
	}
	set := tier.New([]tier.Tier{opened}, []int64{1 << 30})
	s := tier.Around(made{}, set)
	defer s.Close()
	for len(tier.Problems(set.Status())) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	buffers := make([][]byte, *batch)
	for k := range buffers {
		buffers[k] = make([]byte, *size+tier.Spare)
	}
	for i := range *samples {
		if _, err := s.Read(ctx, i, buffers[0]); err != nil {
			log.Fatal(err)
		}
	}
	for set.Status()[0].Queued > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	bare := redis.NewClusterClient(&redis.ClusterOptions{Addrs: flag.Args(), Protocol: 2,
		PipelineReadBufferSize: *buffer})
	defer bare.Close()
	var keys []string
	var mu sync.Mutex
	if err := bare.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		found, err := c.Keys(ctx, "stoc1:{*}").Result()
		mu.Lock()
		defer mu.Unlock()
		for _, k := range found {
			if len(k) > 30 {
				keys = append(keys, k)
			}
		}
		return err
	}); err != nil {
		log.Fatal(err)
	}
	if len(keys) != *samples {
		log.Fatalf("%d values", len(keys))
	}
	ways := map[string]func(chosen []int){
		"bare": func(chosen []int) {
			pipe := bare.Pipeline()
			for k, i := range chosen {
				pipe.GetToBuffer(ctx, keys[i], buffers[k])
			}
			if _, err := pipe.Exec(ctx); err != nil {
				log.Fatal(err)
			}
		},
		"tier": func(chosen []int) {
			var all sync.WaitGroup
			for k, i := range chosen {
				all.Go(func() {
					if _, err := s.Read(ctx, i, buffers[k]); err != nil {
						log.Fatal(err)
					}
				})
			}
			all.Wait()
		},
	}
	rates := map[string][]float64{}
	for run := range *runs {
		order := []string{"bare", "tier"}
		if run%2 == 1 {
			slices.Reverse(order)
		}
		for _, name := range order {
			n, began := 0, time.Now()
			for time.Since(began) < *seconds {
				chosen := make([]int, *batch)
				for k := range chosen {
					chosen[k] = rand.IntN(*samples)
				}
				ways[name](chosen)
				n += *batch
			}
			rate := float64(n) * float64(*size) / 1e6 / time.Since(began).Seconds()
			rates[name] = append(rates[name], rate)
			fmt.Printf("run %d %s %.0f MB/s\n", run, name, rate)
		}
	}
	var ratios []float64
	for k := range *runs {
		ratios = append(ratios, rates["tier"][k]/rates["bare"][k])
	}
	median := func(of []float64) float64 { slices.Sort(of); return of[len(of)/2] }
	fmt.Printf("medians: bare %.0f MB/s, tier %.0f MB/s, of the ratios of neighbouring runs %.3f (%.3f to %.3f)\n",
		median(rates["bare"]), median(rates["tier"]), median(ratios), slices.Min(ratios), slices.Max(ratios))
	if st := set.Status()[0]; st.Misses > uint64(*samples)*2 || st.LeftOut+st.Poisoned+st.Openings > 0 {
		fmt.Printf("%+v\n", st)
	}
}
