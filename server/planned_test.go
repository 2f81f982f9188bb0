package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// training is a job of a test: a client that reads epochs of its own order.
type training struct {
	m     *memory
	s     *client.Served
	order order.Order
	rest  time.Duration // between two batches
	batch int
}

func newTraining(t *testing.T, m *memory, dir string, seed uint64) *training {
	t.Helper()
	s, err := client.Dial(t.Context(), "pets", client.DialOptions{SocketsDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &training{m, s, order.Order{Samples: uint64(m.samples), Kind: order.Shuffled, Seed: seed}, 0, 16}
}

// announce says that the job is at a position of an epoch.
func (j *training) announce(ctx context.Context, epoch, from uint64) error {
	used, err := j.s.Announce(ctx, client.Plan{Order: j.order, Epoch: epoch, Shard: order.Shard{From: from}, Batch: j.batch})
	if err == nil && !used {
		err = errors.New("the cache does not use plans")
	}
	return err
}

// read reads positions of an epoch, batch by batch, and checks each sample. It returns the position at
// which it ended.
func (j *training) read(ctx context.Context, epoch, from, to uint64) (uint64, error) {
	e, err := j.order.Epoch(epoch)
	if err != nil {
		return from, err
	}
	indices, dst := make([]int, j.batch), make([]byte, j.batch*j.m.bytes)
	for from < to {
		n := e.Fill(indices[:min(to-from, uint64(j.batch))], from, 1)
		if err := j.s.Fetch(ctx, indices[:n], dst, j.m.bytes); err != nil {
			return from, err
		}
		for k, i := range indices[:n] {
			if !bytes.Equal(dst[k*j.m.bytes:][:j.m.bytes], content(i, j.m.bytes)) {
				return from, fmt.Errorf("sample %d has other bytes", i)
			}
		}
		from += uint64(n)
		time.Sleep(j.rest)
	}
	return from, nil
}

func (j *training) epoch(number uint64) error {
	if err := j.announce(context.Background(), number, 0); err != nil {
		return err
	}
	_, err := j.read(context.Background(), number, 0, j.order.Samples)
	return err
}

// side runs functions at the same time, and fails with their errors.
func side(t *testing.T, n int, run func(k int) error) {
	t.Helper()
	var all sync.WaitGroup
	for k := range n {
		all.Go(func() {
			if err := run(k); err != nil {
				t.Errorf("job %d: %v", k, err)
			}
		})
	}
	all.Wait()
}

// Ensure that jobs that announced their orders hit as often as docs/guides/server.md says, and that the
// source is read as rarely: half of the dataset is cached, and each job has its own order.
func TestPlannedJobs(t *testing.T) {
	const samples = 4000
	for jobs, want := range map[int]struct{ hits, reads float64 }{2: {0.70, 0.6}, 4: {0.74, 1.04}} {
		t.Run(fmt.Sprint(jobs), func(t *testing.T) {
			m := newMemory(samples, 1024)
			m.latency = 20 * time.Microsecond
			s := evicting(t, m, shm.PolicyPlanned, samples/2, 4)
			all := make([]*training, jobs)
			for k := range all {
				all[k] = newTraining(t, m, s.Dir(), uint64(k)+1)
				all[k].rest = time.Millisecond
			}
			const first, last = 2, 6 // the first two epochs fill the cache
			before := 0
			for number := range uint64(last) {
				if number == first {
					before = m.total()
				}
				side(t, jobs, func(k int) error { return all[k].epoch(number) })
			}
			reads := float64(m.total()-before) / (last - first) / samples
			hits := 1 - reads/float64(jobs)
			t.Logf("%.3f of all reads hit; %.3f of the dataset is read from the source in an epoch of all jobs", hits, reads)
			if hits < want.hits || reads > want.reads {
				t.Errorf("%.3f of all reads hit, at least %g should; %.3f of the dataset is read in an epoch of all jobs, at most "+
					"%g should be", hits, want.hits, reads, want.reads)
			}
		})
	}
}

var _ = rand.N[int]
var _ server.Options
