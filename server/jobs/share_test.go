package jobs_test

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server/jobs"
	"github.com/stocached/stocached/shm"
)

// A job that hits less than its share makes a core, which ends when each job hits more. So it is for jobs that
// count their reads, and for jobs that tell them: for these, FETCHes count as loads of the job that reads the
// sample next. The first epoch does not count, and an account outlives the plan.
func TestFetchedShares(t *testing.T) {
	const samples = 1000
	for _, told := range []bool{false, true} {
		seg := segment(t, samples)
		all := jobs.New(seg)
		at := map[uint32]uint64{}
		announce := func(owner uint32) {
			t.Helper()
			p := jobs.Plan{Order: order.Order{Samples: samples}, Epoch: at[owner] / samples, Owner: owner, Told: told, Batch: 10,
				Shard: order.Shard{From: at[owner] % samples}}
			if !told {
				p.Reads = at[owner]
			}
			fatal.Value(all.Announce(p))(t)
		}
		// read reads an epoch of a job, of which so many parts of ten are loaded.
		read := func(owner uint32, loaded uint64) {
			t.Helper()
			announce(owner)
			for n := uint64(0); n < samples; n += 10 {
				var indices []int64
				for k := range loaded {
					indices = append(indices, int64(n+k))
				}
				if all.Fetched(indices); told {
					if _, err := all.Announce(jobs.Plan{Order: order.Order{Samples: samples}, Epoch: at[owner] / samples, Owner: owner,
						Told: true, Batch: 10, Reads: n + 10}); err != nil {
						t.Fatal(err)
					}
				} else {
					seg.Counter(owner-1, 0, shm.Hits).Add(10 - loaded)
					seg.Counter(owner-1, 0, shm.Misses).Add(loaded)
				}
				all.Balance(samples / 2)
			}
			at[owner] += samples
		}
		want := func(core uint64, why string) {
			t.Helper()
			if got := all.Core(); got > core || got+1 < core { // it is rounded down
				t.Errorf("told %v, %s: %d samples are in the core, want %d", told, why, got, core)
			}
		}
		announce(1)
		at[2] = samples / 2 // the jobs are at other places
		announce(2)
		read(1, 10)
		want(0, "the first epoch loads all")
		read(1, 7)
		want(0, "the share is a quarter, and 0.3 hit")
		read(1, 9)
		want(samples/4, "0.1 hit")
		known, marked := 0, 0
		for s := range uint64(samples) {
			if all.Next(s, 0) == 1 {
				marked++
			}
			if all.Soonest(s, 0) == 1 {
				known++
			}
		}
		if marked < samples/5 || marked > samples/3 || known > 2 {
			t.Errorf("%d samples are the next read with the core, and %d without", marked, known)
		}
		read(1, 7)
		want(samples/4, "0.3 hit, which is no credit")
		for range 3 {
			read(1, 1)
		}
		want(0, "0.9 hit")
		for range 3 {
			read(1, 10)
		}
		want(samples/4, "none hit")
		all.Withdraw(2)
		all.Balance(samples / 2)
		want(0, "a single job")
	}
}
