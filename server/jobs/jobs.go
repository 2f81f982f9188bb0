// Package jobs knows what jobs will read of a cache, and how soon. Jobs announce their orders
// (docs/spec/control.md), and the counters of their clients in the segment say how far they are.
//
// Jobs (jobs.go) are all jobs of a cache. Their method Next is what the policy planned asks for each
// sample that it looks at. A Job (job.go) is one of them. The package imports order, policy and shm.
package jobs

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// maxJobs bounds the time of a set, which asks all jobs about each sample that it looks at.
const maxJobs = 64

// ErrManyJobs: the cache has reached its limit of jobs.
var ErrManyJobs = errors.New("too many jobs")

// Jobs are the jobs of a cache that announced what they read. All methods are safe for concurrent
// use; Next takes no lock.
type Jobs struct {
	segment *shm.Segment
	list    atomic.Pointer[[]*Job] // never changed, but replaced
	changed chan struct{}          // has an element after Announce and Remove
	core    atomic.Uint64          // a sample whose random number is below it is in the core; 0: none is

	mu sync.Mutex // held to replace the list, and to measure speeds and shares
}

// New makes the jobs of a cache, none at first. The segment MUST stay open while Next and the methods
// of a Job are called.
func New(segment *shm.Segment) *Jobs {
	j := &Jobs{segment: segment, changed: make(chan struct{}, 1)}
	j.list.Store(&[]*Job{})
	return j
}

// List returns all jobs. The caller does not change it.
func (j *Jobs) List() []*Job { return *j.list.Load() }

// Changed has an element when jobs came or went since it was last received from.
func (j *Jobs) Changed() <-chan struct{} { return j.changed }

// Announce adds a job, in place of the one of the same client. A client that tells how far it is moves
// its job, if the rest of the plan is the same. Errors: order.ErrInvalid, ErrManyJobs; the old one stays
// then.
func (j *Jobs) Announce(p Plan) (*Job, error) {
	p.Shard.Ranks = max(p.Shard.Ranks, 1)
	j.mu.Lock()
	defer j.mu.Unlock()
	old := j.of(p.Owner)
	if old != nil && old.goesOn(p) {
		old.told.Store(p.Reads)
		old.by = p.By
		return old, nil
	}
	job, err := newJob(j.segment, p)
	if err != nil {
		return nil, err
	}
	left := j.without(old)
	if len(left) >= maxJobs {
		return nil, fmt.Errorf("%w: %d jobs have announced what they read of this cache", ErrManyJobs, len(left))
	}
	if old != nil {
		job.pace.Store(old.pace.Load())
		job.speed = old.speed // the same client goes on
		job.speed.seen = 0
		job.account = old.account.handedOver(old, job)
	}
	j.replace(append(left, job), old)
	return job, nil
}

// Withdraw removes the job of a client.
func (j *Jobs) Withdraw(owner uint32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.of(owner); old != nil {
		j.replace(j.without(old), old)
	}
}

func (j *Jobs) of(owner uint32) *Job {
	for _, job := range j.List() {
		if job.Plan.Owner == owner {
			return job
		}
	}
	return nil
}

// Remove removes a job if by has announced it last.
func (j *Jobs) Remove(old *Job, by any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old.by == by {
		j.replace(j.without(old), old)
	}
}

func (j *Jobs) without(old *Job) []*Job {
	return slices.DeleteFunc(slices.Clone(j.List()), func(job *Job) bool { return job == old })
}

func (j *Jobs) replace(list []*Job, old *Job) {
	if old != nil {
		old.over.Store(true)
	}
	j.list.Store(&list)
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// Next returns how soon any job reads a sample, in reads of the fastest job. 1: it is the next read.
// policy.Unread: no job is known to read it. 0: there are no jobs, so it is unknown. Next stops at the
// first job that reads the sample before soon. A sample of the core counts as the next read.
func (j *Jobs) Next(sample, soon uint64) uint64 {
	if policy.Random(0, sample) < j.core.Load() {
		return 1
	}
	return j.Soonest(sample, soon)
}

// Soonest is Next without the core.
func (j *Jobs) Soonest(sample, soon uint64) uint64 {
	list := *j.list.Load()
	if len(list) == 0 {
		return 0
	}
	soonest := uint64(policy.Unread)
	for _, job := range list {
		if soonest = min(soonest, job.next(sample)); soonest < soon {
			break
		}
	}
	return soonest
}

const (
	// memory is for how long a speed counts: a job's speed is the average of about so long.
	memory = 5 * time.Second
	// slowest is the most that a job's reads count as reads of the fastest job. A job that pauses keeps
	// that much of its place.
	slowest = 64
)

// Measure compares the speeds of all jobs. passed is the time since its last call.
func (j *Jobs) Measure(passed time.Duration) {
	keep := math.Exp(-float64(passed) / float64(memory))
	fastest := 0.0
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.List()
	for _, job := range list {
		fastest = max(fastest, job.speed.measure(job.Reads(), passed.Seconds(), keep))
	}
	for _, job := range list {
		pace := 1.0
		if rate := job.speed.rate(); rate >= 0 && fastest > 0 {
			pace = min(fastest/max(rate, fastest/slowest), slowest)
		}
		job.pace.Store(math.Float64bits(pace))
	}
}

// speed is how fast a job reads. Jobs.mu protects it.
type speed struct {
	seen           uint64 // reads of the job at the last call
	reads, seconds float64
}

func (s *speed) measure(reads uint64, passed, keep float64) float64 {
	s.reads = s.reads*keep + float64(reads-min(s.seen, reads))
	s.seconds = s.seconds*keep + passed
	s.seen = reads
	return s.rate()
}

// rate is in reads a second; below 0: the job has read nothing yet.
func (s *speed) rate() float64 {
	if s.reads == 0 || s.seconds == 0 {
		return -1
	}
	return s.reads / s.seconds
}

// Status describes a job to operators. Fields are never renamed.
type Status struct {
	Owner  uint32  `json:"owner"` // owner number of its client
	Kind   string  `json:"kind"`
	Seed   uint64  `json:"seed"`
	Rank   uint64  `json:"rank"`
	Ranks  uint64  `json:"world_size"`
	Epoch  uint64  `json:"epoch"`
	Read   uint64  `json:"read"`       // samples that it has read of this epoch
	Total  uint64  `json:"total"`      // samples that it reads of this epoch
	Speed  float64 `json:"speed"`      // its reads while the fastest job makes one
	Ahead  uint64  `json:"read_ahead"` // samples that the server read ahead for it alone, since it announced
	Misses uint64  `json:"misses"`     // samples that were not there when its client read them, since it announced
}

// Statuses describes all jobs. The segment is open.
func (j *Jobs) Statuses() []Status {
	all := []Status{}
	for _, job := range j.List() {
		p := &job.Plan
		epoch, at, of := job.Position(job.Reads())
		all = append(all, Status{Owner: p.Owner, Kind: p.Order.Kind.String(), Seed: p.Order.Seed, Rank: p.Shard.Rank,
			Ranks: p.Shard.Ranks, Epoch: epoch, Read: at, Total: of, Speed: 1 / job.Pace(), Ahead: job.Ahead.Load(),
			Misses: job.count(shm.Misses) - job.missed})
	}
	return all
}

// Plan is what a job reads, from now on: the rest of an epoch, and then the next epochs.
type Plan struct {
	Order order.Order
	Epoch uint64
	Shard order.Shard // From is the position of the job in the epoch
	Owner uint32      // owner number of its client, whose counters say how far it is
	Reads uint64      // what these counters were at that position; if Told, how many reads it has made since
	Batch uint64      // samples that it reads at a time; 0: 1
	Told  bool        // the client says how far it is; its counters do not
	By    any         // a comparable value: who announced it, and may remove it
}
