package server_test

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// pace is how a job of a test reads.
type pace struct {
	seed  uint64
	start int // batches of the first job before this one starts
	every int // it reads a batch when the first job reads so many
}

// sharedLoads reads epochs of jobs on one planned cache, and returns what part of the dataset is loaded for each
// job in one of its epochs, the first one left out. One goroutine reads for all jobs in turn. So their speeds are
// those of the test, on any machine.
func sharedLoads(t *testing.T, kind order.Kind, slots int, jobs ...pace) []float64 {
	const samples, batch, epochs = 2000, 20, 8
	m := newMemory(samples, 1024)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: sizeFor(t, m, slots), Policy: shm.PolicyPlanned, Parallel: 2}))
	all, at, begin := make([]*training, len(jobs)), make([]uint64, len(jobs)), make([]float64, len(jobs))
	// total returns what is loaded for the job that announced at this place among all.
	var place []int
	total := func(k int) float64 {
		for n, other := range place {
			if other == k {
				job := jobsOf(t, s)[n].(map[string]any)
				return job["misses"].(float64) + job["read_ahead"].(float64)
			}
		}
		t.Fatal("the server does not know job", k)
		return 0
	}
	for round := 0; at[0] < epochs*samples; round++ {
		for k, p := range jobs {
			if round < p.start || (round-p.start)%p.every != 0 {
				continue
			}
			if at[k] == 0 {
				all[k] = newTraining(t, m, s.Dir(), p.seed)
				all[k].order.Kind, all[k].batch = kind, batch
				if err := all[k].announce(t.Context(), 0, 0); err != nil { // once: the next epochs follow
					t.Fatal(err)
				}
				place = append(place, k)
			}
			from := at[k] % samples
			next := fatal.Value(all[k].read(t.Context(), at[k]/samples, from, from+batch))(t)
			if at[k] += next - from; at[k] == samples {
				begin[k] = total(k)
			}
		}
	}
	loads := make([]float64, len(jobs))
	for k := range jobs {
		loads[k] = (total(k) - begin[k]) / float64(at[k]-samples)
	}
	return loads
}

// Ensure what docs/spec/policies.md says of shares: with jobs of other speeds, jobs that start late, and jobs of
// one order of which the same one always comes first, no job has more samples loaded for it than alone beside
// a cache of its share.
func TestPlannedShares(t *testing.T) {
	const margin = 0.03 // a part of the dataset: until the server has noticed a debt
	for _, c := range []struct {
		name  string
		kind  order.Kind
		slots int
		jobs  []pace
	}{
		{"slow and late", order.Shuffled, 1000, []pace{{1, 0, 1}, {2, 0, 6}, {3, 130, 1}, {4, 170, 3}}},
		{"the first of three", order.Sequential, 500, []pace{{1, 0, 1}, {1, 15, 1}, {1, 30, 1}}},
		{"the first of two", order.Sequential, 500, []pace{{1, 0, 1}, {1, 35, 1}}},
		{"the last of two", order.Sequential, 1000, []pace{{1, 0, 1}, {1, 60, 1}}},
		{"the last of four", order.Sequential, 500, []pace{{1, 0, 1}, {1, 25, 1}, {1, 50, 1}, {1, 75, 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone := sharedLoads(t, c.kind, c.slots/len(c.jobs), c.jobs[0])[0]
			loads := sharedLoads(t, c.kind, c.slots, c.jobs...)
			t.Logf("alone %.3f, together %.3f", alone, loads)
			for k, of := range loads {
				if of > alone+margin {
					t.Errorf("%.3f of the dataset is loaded for job %d in an epoch, and alone %.3f", of, k, alone)
				}
			}
		})
	}
}
