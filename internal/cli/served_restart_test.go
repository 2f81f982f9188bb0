package cli

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
)

// Ensure that programs survive restarts of their server. A fetch waits for the next server and gets
// every sample if its server is ending, ends during the fetch, or has not started yet.
func TestFetchAcrossRestarts(t *testing.T) {
	t.Parallel()
	const n = 3000
	s := configureServed(t, fmt.Sprintf("size: 8MB, parallel: 8, source: {kind: raw, path: records, sample_bytes: "+
		"%d, limits: {latency: 2ms}}", servedBytes))
	s.write(n)
	s.start()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for r := range 3 {
		c, err := stocclient.Dial(context.Background(), "pets",
			stocclient.DialOptions{SocketsDir: s.sockets, Timeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		random := rand.New(rand.NewSource(int64(r)))
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				wantFetch(t, c, random.Perm(n)[:50])
			}
		})
	}
	for k := range 6 {
		time.Sleep(150 * time.Millisecond)
		if k%2 == 0 {
			s.process.Process.Signal(syscall.SIGTERM)
			s.process.Wait()
		} else {
			s.kill()
		}
		time.Sleep(100 * time.Millisecond)
		s.start()
	}
	close(stop)
	readers.Wait()
}

// Ensure that a fetched sample counts as one miss, and as nothing else.
func TestFetchCountsOnce(t *testing.T) {
	for _, size := range []string{"all", "4300kB"} { // only some fit
		s := newServed(t, 400, size)
		c := s.dial()
		for epoch := range 2 {
			for k := range 8 {
				wantFetch(t, c, first(400)[k*50:][:50])
			}
			stats, err := c.Stats()
			hits := uint64(epoch * min(c.Info().Slots, 400))
			if err != nil || stats.Hits != hits || stats.Misses != uint64(400*(epoch+1))-hits {
				t.Errorf("size %s, epoch %d: %d hits, %d misses, %v; there are %d slots", size, epoch, stats.Hits,
					stats.Misses, err, c.Info().Slots)
			}
		}
		var there []int // several readers have decided which ones
		for i := range c.Ready() {
			if there = append(there, i); len(there) == 3 {
				break
			}
		}
		if _, err := c.FetchSamples(context.Background(), there); err != nil {
			t.Error(err)
		}
		if stats, err := c.Stats(); err != nil || stats.Hits != uint64(min(c.Info().Slots, 400)+3) {
			t.Errorf("samples by themselves: %d hits, %v", stats.Hits, err)
		}
	}
}
