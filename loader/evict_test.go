package loader_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
)

// evict sets samples of a cache at random until the returned function is called.
func evict(t *testing.T, d *dataset, c *client.Cache) (stop func()) {
	end := make(chan struct{})
	var evictor sync.WaitGroup
	evictor.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-end:
				return
			default:
			}
			i := random.IntN(d.samples)
			expect.Works(c.SetParts(i, [][]byte{d.want(i)}, 0, time.Duration(1+random.IntN(1e6))))(t)
		}
	})
	stop = sync.OnceFunc(func() { close(end); evictor.Wait() })
	t.Cleanup(stop)
	return stop
}

// Every epoch has each sample once and right, from a cache that loses samples all the time: a hit
// that is lost is loaded like a miss.
func TestLostHits(t *testing.T) {
	const samples = 200
	all := shm.EvictingPolicies()
	for n := range 2 * len(all) {
		policy, variable := all[n/2], n%2 == 1
		if variable != (n/2%2 == 1) || testing.Short() && n/2 < len(all)-2 {
			continue // every other policy with each kind of samples; races of policies are those of caches
		}
		t.Run(fmt.Sprint(policy, map[bool]string{true: ", variable"}[variable]), func(t *testing.T) {
			planned := policy == shm.PolicyPlanned
			d := newDataset(samples, 1000)
			o := client.Options{Samples: samples, SampleBytes: 1000, Slots: samples / 2, Policy: policy}
			if variable { // sizes up to 40 KB, 4 MB together; half of them fit
				d.bytes, d.scale = 0, 200
				o = client.Options{Samples: samples, Variable: true, Size: 4 << 20, Clients: 8, Policy: policy}
			}
			c := fatal.Value(client.Create("", o))(t)
			defer c.Close()
			of := shuffled(samples)
			from := fatal.Value(loader.FromCacheAndSource(c, d))(t)
			l := open(t, from, loader.Options{BatchSize: 50, Order: of, Ahead: 3})
			sockets, _, stopServer := serve(t, d, 50, policy)
			served := dial(t, sockets)
			throughServer := open(t, loader.FromServer(served), loader.Options{BatchSize: 50, Order: of, Ahead: 3})
			stops := []func(){evict(t, d, c), evict(t, d, served.Cache)}
			for e := range uint64(4) {
				for _, l := range []*loader.Loader{l, throughServer} {
					if got := readEpoch(t, d, l); !slices.Equal(got, wanted(t, of, e, order.Shard{})) {
						t.Fatalf("epoch %d: %v", e, got)
					}
				}
			}
			for _, stop := range stops {
				stop()
			}
			for _, l := range []*loader.Loader{l, throughServer} {
				// with the policy planned only a server evicts, and it reads ahead
				if s := l.Stats(); s.Hits+s.Misses != 4*samples || !planned && s.Misses < samples || s.Misses == 0 {
					t.Errorf("%+v", s)
				}
			}
			if stats, err := c.Stats(); err != nil || !planned && stats.Evicted == 0 || stats.Corrupt+stats.Lost != 0 {
				t.Errorf("%+v, %v", stats, err)
			}
			expect.NoError(t, served.Close())
			stopServer()
		})
	}
}

// A loader tells a cache that needs it what loads cost. So after some epochs, the cache has the
// costliest samples. A busy machine makes some loads look costly, so the test reads epochs until it
// holds. Without costs it would never hold: 10 of 30 slots are the mean of a random set.
func TestLoaderTellsCosts(t *testing.T) {
	const samples = 90
	d := newDataset(samples, 100)
	// 1, 20 and 120 ms, which other processes on the machine do not blur.
	d.act = func(_ context.Context, i int) { time.Sleep([]time.Duration{1, 20, 120}[i%3] * time.Millisecond) }
	c, err := client.Create("", client.Options{Samples: samples, SampleBytes: 100, Slots: samples / 3,
		Policy: client.PolicyCost})
	fatal.If(t, err)
	defer c.Close()
	from := fatal.Value(loader.FromCacheAndSource(c, d))(t)
	l := open(t, from, loader.Options{BatchSize: 10, Order: shuffled(samples), Workers: 8})
	kept := 0
	for epoch := 0; kept < samples/3*8/10; epoch++ {
		if epoch == 50 {
			t.Fatalf("after %d epochs, %d of %d slots have one of the costliest samples", epoch, kept, samples/3)
		}
		readEpoch(t, d, l)
		kept = 0
		for i := 2; i < samples; i += 3 {
			if state, err := c.Inspect().State(i); err == nil && state == client.StateReady {
				kept++
			}
		}
	}
}
