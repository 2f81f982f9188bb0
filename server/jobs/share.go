package jobs

import (
	"math"
	"math/bits"
	"slices"

	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// The share of a job is the part of the slots that it would have if each job had as many. In a cache of its share,
// a job would hit that part of its reads, for it reads each sample once an epoch. If a job hits less, there is a core:
// as many samples as a share has slots, which stay for all jobs. docs/spec/policies.md has the rules.
const (
	// debtPart: a core begins when a job has hit less than its share, by such a part of the share in an epoch.
	debtPart = 16
	// creditPart: the core ends when each job hits more than its share, by such a part of the share.
	creditPart = 2
)

// account counts how often a job reads, and how often the sample is not there for it. Jobs.mu protects it.
type account struct {
	seenReads, seenLoads uint64 // at the last call
	total                uint64 // reads since the client announced its first plan
	reads, loads         float64
}

// measured returns what the account counts: the reads of a job, and of these the loads.
func (j *Job) measured() (reads, loads uint64) {
	if j.Plan.Told {
		return j.told.Load(), j.asked.Load() + j.Ahead.Load()
	}
	misses := j.count(shm.Misses)
	return j.count(shm.Hits) + misses, misses + j.Ahead.Load()
}

// Fetched counts the samples of a FETCH as loads of the jobs whose clients tell how far they are. A sample counts
// for the job that has to make the fewest reads up to it. The segment is open.
func (j *Jobs) Fetched(indices []int64) {
	list := j.List()
	if !slices.ContainsFunc(list, func(job *Job) bool { return job.Plan.Told }) {
		return // counters say what the others miss
	}
	for _, i := range indices {
		var of *Job
		nearest := uint64(policy.Unread)
		for _, job := range list {
			if n := job.until(uint64(i)); n < nearest {
				of, nearest = job, n
			}
		}
		if of != nil && of.Plan.Told {
			of.asked.Add(1)
		}
	}
}

// handedOver is the account of a job for the one that replaces it.
func (a *account) handedOver(old, job *Job) account {
	old.settle()
	next := *a
	next.seenReads, next.seenLoads = job.measured()
	return next
}

// settle brings an account up to date. Older reads count less: those of an epoch ago by 1/e.
func (j *Job) settle() {
	a := &j.account
	reads, loads := j.measured()
	r, l := reads-min(a.seenReads, reads), loads-min(a.seenLoads, loads)
	a.seenReads, a.seenLoads = reads, loads
	a.total += r
	if a.total <= j.whole { // a cache of its own would fill in that time
		return
	}
	keep := math.Exp(-float64(r) / float64(j.whole))
	a.reads, a.loads = a.reads*keep+float64(r), a.loads*keep+float64(l)
}

// Balance compares what each job hits with its share, and makes or ends the core. fits is how many samples fit.
// The segment is open.
func (j *Jobs) Balance(fits uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.List()
	if len(list) < 2 {
		j.core.Store(0)
		return
	}
	fits = min(fits, j.segment.Samples)
	of := j.segment.Samples * uint64(len(list))
	share := float64(fits) / float64(of)
	debt, credit := false, true
	for _, job := range list {
		job.settle()
		hits, due := job.reads-job.loads, job.reads*share
		debt = debt || due-hits > share*float64(job.whole)/debtPart
		credit = credit && (job.reads == 0 || hits-due > due/creditPart)
	}
	threshold := uint64(0)
	if debt || j.core.Load() > 0 && !credit {
		threshold, _ = bits.Div64(fits, 0, of)
	}
	j.core.Store(threshold)
}

// Core returns how many samples stay for all jobs, about.
func (j *Jobs) Core() uint64 {
	n, _ := bits.Mul64(j.core.Load(), j.segment.Samples)
	return n
}
