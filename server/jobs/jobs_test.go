package jobs_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/server/jobs"
	"github.com/stocached/stocached/shm"
)

func segment(t *testing.T, samples uint64) *shm.Segment {
	t.Helper()
	seg, err := shm.NewHeap(shm.Options{Samples: samples, Slots: max(samples/2, 1), SampleBytes: 8, Policy: shm.PolicyPlanned})
	fatal.If(t, err)
	t.Cleanup(func() { seg.Close() })
	return seg
}

// read counts reads of a client.
func read(seg *shm.Segment, owner uint32, n uint64) {
	seg.Counter(owner-1, int(n%shm.CounterStripes), shm.Hits).Add(n / 2)
	seg.Counter(owner-1, 0, shm.Misses).Add(n - n/2)
}

// sequence is what a job reads, from its announcement to the end of the fourth epoch after.
func sequence(t *testing.T, p jobs.Plan) (all []int) {
	t.Helper()
	for number := range uint64(5) {
		e := fatal.Value(p.Order.Epoch(p.Epoch + number))(t)
		shard := p.Shard
		if number > 0 {
			shard.From = 0
		}
		part := fatal.Value(shard.Of(e))(t)
		samples := make([]int, part.Samples())
		part.Fill(samples, 0)
		all = append(all, samples...)
	}
	return all
}

// Next is what the orders of the jobs say, at each moment, for each kind of order, for ranks, and for
// jobs that begin in the middle of an epoch.
func TestNext(t *testing.T) {
	for _, o := range []order.Order{
		{Samples: 61, Kind: order.Sequential},
		{Samples: 300, Kind: order.Shuffled, Seed: 5},
		{Samples: 61, Kind: order.Windows, Seed: 6, Window: 10},
		{Samples: 61, Kind: order.Blocks, Seed: 7, Window: 3, Block: 4},
	} {
		for _, shard := range []order.Shard{{}, {From: 17}, {Rank: 2, Ranks: 3}, {Rank: 1, Ranks: 3, From: 7, Ends: order.Drop},
			{From: o.Samples}} {
			seg := segment(t, o.Samples)
			all := jobs.New(seg)
			read(seg, 3, 1000) // reads of a client before
			p := jobs.Plan{Order: o, Epoch: 4, Shard: shard, Owner: 3, Reads: 1000}
			job := fatal.Value(all.Announce(p))(t)
			want := sequence(t, p)
			_, _, whole := job.Position(uint64(len(want)))
			for done := range len(want) * 2 / 5 {
				got := make([]int, min(40, len(want)-done))
				job.Fill(got, uint64(done))
				if !slices.Equal(got, want[done:][:len(got)]) {
					t.Fatalf("%+v, %+v: after %d reads come %v, want %v", o, shard, done, got, want[done:][:len(got)])
				}
				behind := max(done-1, 0) // the last read may still go on
				for sample := range o.Samples {
					next := all.Next(sample, 0)
					at := slices.Index(want[behind:], int(sample))
					_, number, of := job.Position(uint64(behind))
					if next == policy.Unread && (at < 0 || uint64(at) >= of-number+whole) {
						continue // not in this epoch and the next one
					}
					if next != uint64(at)+1 {
						t.Fatalf("%+v, %+v: after %d reads sample %d comes in %d, want %d", o, shard, done, sample, next, at+1)
					}
				}
				read(seg, 3, 1)
			}
		}
	}
}

// Next asks for no memory while an epoch lasts.
func TestNextAllocatesNothing(t *testing.T) {
	seg := segment(t, 1000)
	all := jobs.New(seg)
	for owner := range uint32(4) {
		_, err := all.Announce(jobs.Plan{Order: order.Order{Samples: 1000, Kind: order.Shuffled, Seed: uint64(owner)},
			Owner: owner + 1})
		fatal.If(t, err)
	}
	expect.Equal(t, testing.AllocsPerRun(100, func() { all.Next(7, 0) }), 0, "allocations")
}

// The nearest use by any job counts, in reads of the fastest job. A job that does not move keeps a
// small part; one that has not begun counts as the others do.
func TestSpeeds(t *testing.T) {
	seg := segment(t, 10_000)
	all := jobs.New(seg)
	expect.Equal(t, all.Next(0, 0), 0, "without jobs")
	sequential := order.Order{Samples: 10_000, Kind: order.Sequential}
	announce := func(owner uint32, from uint64) *jobs.Job {
		job := fatal.Value(all.Announce(jobs.Plan{Order: sequential, Shard: order.Shard{From: from}, Owner: owner}))(t)
		return job
	}
	fast, slow := announce(1, 0), announce(2, 2000)
	want := func(what string, sample, next uint64) {
		t.Helper()
		if got := all.Next(sample, 0); math.Abs(float64(got)-float64(next)) > 0.05*float64(next)+1 {
			t.Errorf("%s: sample %d in %d, want %d", what, sample, got, next)
		}
	}
	want("before the first read", 1000, 1001)
	want("before the first read", 2500, 501)
	for range 100 {
		read(seg, 1, 40)
		read(seg, 2, 10)
		all.Measure(100 * time.Millisecond)
	}
	want("the slow one", 3500, 4*500)
	want("the fast one comes before", 5000, 1000)
	late := announce(3, 8000)
	all.Measure(100 * time.Millisecond)
	want("a late one that has not begun", 8500, 501)
	all.Remove(late, nil)
	for range 200 {
		read(seg, 1, 10)
		all.Measure(100 * time.Millisecond)
	}
	if p := slow.Pace(); p < 40 || p > 64 {
		t.Errorf("one that has stopped has pace %g", p)
	}
	expect.Equal(t, fast.Pace(), 1, "")
	all.Remove(fast, nil)
	all.Measure(time.Second)
	want("the only one", 7000, 4000)
	all.Remove(slow, nil)
	if n := all.Next(0, 0); n != 0 || !slow.Over() || len(all.List()) != 0 {
		t.Errorf("%d without jobs", n)
	}
}

// Bad plans are refused, and the one before stays.
func TestRefused(t *testing.T) {
	seg := segment(t, 10)
	all := jobs.New(seg)
	good := jobs.Plan{Order: order.Order{Samples: 10, Kind: order.Shuffled}, Owner: 1}
	old, err := all.Announce(good)
	fatal.If(t, err)
	for _, change := range []func(p *jobs.Plan){
		func(p *jobs.Plan) { p.Order.Samples = 11 },
		func(p *jobs.Plan) { p.Order.Kind = 4 },
		func(p *jobs.Plan) { p.Order.Window = 3 },
		func(p *jobs.Plan) { p.Owner = 0 },
		func(p *jobs.Plan) { p.Owner = 1 << 30 },
		func(p *jobs.Plan) { p.Shard.From = 11 },
		func(p *jobs.Plan) { p.Shard.Rank = 1 },
		func(p *jobs.Plan) { p.Shard.Ranks, p.Shard.Rank = 20, 15 },
		func(p *jobs.Plan) { p.Shard.Ends = 3 },
	} {
		p := good
		change(&p)
		if _, err := all.Announce(p); !errors.Is(err, order.ErrInvalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if list := all.List(); len(list) != 1 || list[0] != old || old.Over() {
		t.Error(list)
	}
	for k := range uint32(100) {
		p := good
		p.Owner = k + 2
		if _, err = all.Announce(p); err != nil {
			break
		}
	}
	expect.Error(t, err, jobs.ErrManyJobs)
	if job, err := all.Announce(good); err != nil || !old.Over() || job.Over() {
		t.Error(err)
	}
}

// A client that tells how far its job is moves the job, and its counters mean nothing. Only who has
// announced it last removes it.
func TestJobsThatAreTold(t *testing.T) {
	seg := segment(t, 100)
	all := jobs.New(seg)
	announce := func(reads uint64, by string, change func(*jobs.Plan)) *jobs.Job {
		t.Helper()
		p := jobs.Plan{Order: order.Order{Samples: 100}, Owner: 2, Reads: reads, Batch: 1, Told: true, By: by}
		if change != nil {
			change(&p)
		}
		job := fatal.Value(all.Announce(p))(t)
		return job
	}
	job := announce(0, "a", nil)
	job.Ahead.Store(7)
	read(seg, 2, 50)
	expect.Equal(t, job.Reads(), 0, "reads by its counters")
	if announce(30, "b", nil) != job || len(all.List()) != 1 || job.Over() || job.Reads() != 30 || job.Ahead.Load() != 7 {
		t.Errorf("%d reads, over: %v", job.Reads(), job.Over())
	}
	if next := all.Next(30, 0); next != 2 { // the last read may still go on
		t.Errorf("sample 30 comes in %d reads", next)
	}
	if all.Remove(job, "a"); len(all.List()) != 1 {
		t.Error("another connection has removed it")
	}
	others := map[string]func(*jobs.Plan){
		"epoch":    func(p *jobs.Plan) { p.Epoch++ },
		"position": func(p *jobs.Plan) { p.Shard.From++ },
		"counters": func(p *jobs.Plan) { p.Told = false },
	}
	for what, change := range others {
		old := announce(30, "b", nil)
		if now := announce(40, "b", change); now == old || !old.Over() || len(all.List()) != 1 {
			t.Errorf("another %s only moves the job", what)
		}
	}
	if last := all.List()[0]; !last.Over() {
		if all.Remove(last, "b"); len(all.List()) != 0 || !last.Over() {
			t.Error("it stays")
		}
	}
}
