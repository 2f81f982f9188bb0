package prefetch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/jobs"
)

const (
	// aheadPart: so small a part of the samples that fit are those that jobs read soonest, for all jobs
	// together. They come a little before they would have to, so they cost hits.
	aheadPart = 16
	// maxAhead is the most reads that the server is ahead of a job.
	maxAhead = 1024
	// aheadChunk is how many samples Ahead takes of a job at a time, maxAheadUnderWay the most that it
	// has requested.
	aheadChunk       = 32
	maxAheadUnderWay = 256
	// aheadTick is how often Ahead checks how far jobs are, idleTick if none has moved for a second.
	aheadTick, idleTick = 2 * time.Millisecond, 50 * time.Millisecond
	// measureTime is how often speeds are measured.
	measureTime = 100 * time.Millisecond
)

// Ahead reads samples ahead for all jobs of a cache with the policy planned, in the order in which they
// are read, by any of them. One goroutine does so. A sample that it reads takes the slot of another only
// if that is read later.
type Ahead struct {
	cache   Cache
	jobs    *jobs.Jobs
	queue   *fill.Queue
	wake    chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup

	next map[*jobs.Job]uint64 // first read of each job that is not planned; only run uses it, and fits
	fits uint64               // how many samples fit now, as measured last

	mu       sync.Mutex // protects the fields below
	requests map[*fill.Request]*jobs.Job
	underWay int
}

// NewAhead starts to read ahead.
func NewAhead(c Cache, j *jobs.Jobs) *Ahead {
	a := &Ahead{cache: c, jobs: j, queue: fill.NewQueue(true, func() bool { return false }),
		wake: make(chan struct{}, 1), next: map[*jobs.Job]uint64{}, requests: map[*fill.Request]*jobs.Job{}}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	a.running.Go(func() { a.run(ctx) })
	return a
}

// Close ends it, and its requests.
func (a *Ahead) Close() {
	a.cancel()
	a.running.Wait()
}

func (a *Ahead) run(ctx context.Context) {
	defer a.cancelAll(func(*jobs.Job) bool { return true })
	timer := time.NewTimer(0)
	defer timer.Stop()
	measured, moved := time.Now(), time.Now()
	for {
		pause, changed := timer.C, false
		if len(a.jobs.List()) == 0 {
			pause = nil // until one comes
		}
		select {
		case <-ctx.Done():
			return
		case <-a.jobs.Changed():
			measured, moved, changed = time.Now(), time.Now(), true
		case <-pause:
		case <-a.wake:
		}
		if !a.cache.Enter() {
			return
		}
		passed := time.Since(measured)
		if passed >= measureTime {
			a.jobs.Measure(passed)
			measured = time.Now()
		}
		if passed >= measureTime || changed {
			a.fits = a.cache.Client().FitsNow()
		}
		a.jobs.Balance(a.cache.Client().Fits())
		if a.cancelAll((*jobs.Job).Over); changed {
			a.cache.Filler().ExpireSide()
		}
		if a.step() {
			moved = time.Now()
		}
		a.cache.Leave()
		tick := aheadTick
		if time.Since(moved) > time.Second {
			tick = idleTick
		}
		timer.Reset(tick)
	}
}

// cancelAll cancels the requests of some jobs.
func (a *Ahead) cancelAll(of func(*jobs.Job) bool) {
	a.mu.Lock()
	var left []*fill.Request
	for r, job := range a.requests {
		if of(job) {
			left = append(left, r)
		}
	}
	a.mu.Unlock()
	for _, r := range left {
		a.cache.Filler().Cancel(r)
	}
}

// step requests what it may now, and says whether a job has moved. The caller has entered.
func (a *Ahead) step() (moved bool) {
	list := a.jobs.List()
	maps.DeleteFunc(a.next, func(job *jobs.Job, _ uint64) bool { return job.Over() })
	if len(list) == 0 {
		return false
	}
	limit := float64(min(max(a.fits/aheadPart/uint64(len(list)), 1), maxAhead))
	reads := make([]uint64, len(list))
	for k, job := range list {
		reads[k] = job.Reads()
		next, known := a.next[job]
		moved = moved || !known || reads[k] > next
		a.next[job] = max(next, reads[k])
	}
	for {
		nearest, at := limit, -1
		for k, job := range list {
			if d := float64(a.next[job]-reads[k]) * job.Pace(); d < nearest {
				nearest, at = d, k
			}
		}
		a.mu.Lock()
		busy := a.underWay >= maxAheadUnderWay
		a.mu.Unlock()
		if at < 0 || busy {
			return moved
		}
		job := list[at]
		indices := make([]int, min(max(uint64((limit-nearest)/job.Pace()), 1), aheadChunk))
		job.Fill(indices, a.next[job])
		a.next[job] += uint64(len(indices))
		moved = true
		a.request(job, indices)
	}
}

// request requests those samples that are missing.
func (a *Ahead) request(job *jobs.Job, indices []int) {
	client := a.cache.Client()
	missing := slices.DeleteFunc(indices, func(i int) bool {
		state, err := client.State(i)
		return err != nil || state == cache.StateReady || state == cache.StateOut
	})
	if len(missing) == 0 {
		return
	}
	a.cache.ReadAhead(missing)
	r := fill.NewRequest(a, a.queue, missing)
	a.mu.Lock()
	a.requests[r] = job
	a.underWay += len(missing)
	a.mu.Unlock()
	a.cache.Filler().Submit(r)
}

// CanTake returns true: it keeps no bytes.
func (a *Ahead) CanTake(int) bool { return true }

// Take refuses a sample that has no slot.
func (a *Ahead) Take(uint32, *fill.Buffer) bool { return false }

// Done counts the results of a request after its last sample.
func (a *Ahead) Done(r *fill.Request, _ []control.Failure) {
	a.mu.Lock()
	a.requests[r].Ahead.Add(uint64(r.Alone()))
	delete(a.requests, r)
	a.underWay -= r.Len()
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
