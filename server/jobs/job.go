package jobs

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Job is a job that reads a cache. Its reads are numbered from 0, where it announced its plan.
type Job struct {
	Plan    Plan
	Ahead   atomic.Uint64 // samples that the server read ahead for it, and no client was waiting for
	segment *shm.Segment
	first   uint64 // reads of the epoch in which it announced
	whole   uint64 // reads of each later epoch
	behind  uint64 // reads that may still go on
	missed  uint64 // misses of its client when the server heard of it
	by      any    // who announced it last; Jobs.mu protects it

	told   atomic.Uint64          // its reads, if its client tells them
	asked  atomic.Uint64          // samples that other clients fetched for it, in that case
	epochs atomic.Pointer[epochs] // where it was when someone last asked
	pace   atomic.Uint64          // bits of a float64: its reads in those of the fastest job
	over   atomic.Bool
	speed  speed // Jobs.mu protects it and account
	account
}

// epochs are an epoch of a job, and the one after it.
type epochs struct {
	begin, reads uint64 // number of its first read, and how many there are
	from         uint64 // position of the first read of all ranks
	now, then    *order.Epoch
}

// newJob checks a plan. Errors: order.ErrInvalid.
func newJob(segment *shm.Segment, p Plan) (*Job, error) {
	if p.Order.Samples != segment.Samples {
		return nil, fmt.Errorf("%w: the order has %d samples, and the cache %d", order.ErrInvalid, p.Order.Samples,
			segment.Samples)
	}
	if p.Owner == 0 || p.Owner > segment.ClientRecords {
		return nil, fmt.Errorf("%w: owner %d is no client of the cache, which has %d; only a client that may write counts "+
			"what it reads", order.ErrInvalid, p.Owner, segment.ClientRecords)
	}
	job := &Job{Plan: p, by: p.By, segment: segment, behind: min(max(p.Batch, 1), max(segment.Fits(0, 0)/8, 1))}
	epoch, err := p.Order.Epoch(p.Epoch)
	if err != nil {
		return nil, err
	}
	rest, err := p.Shard.Of(epoch)
	if err != nil {
		return nil, err
	}
	p.Shard.From = 0
	whole, err := p.Shard.Of(epoch)
	if err != nil {
		return nil, err
	}
	if job.first, job.whole = rest.Samples(), whole.Samples(); job.whole == 0 {
		return nil, fmt.Errorf("%w: rank %d of %d reads none of %d samples", order.ErrInvalid, p.Shard.Rank,
			p.Shard.Ranks, p.Order.Samples)
	}
	job.missed = job.count(shm.Misses)
	if p.Told {
		job.told.Store(p.Reads)
	}
	job.pace.Store(math.Float64bits(1))
	job.epochs.Store(job.epochsOf(0))
	return job, nil
}

// Over says that the job has ended, or has announced another plan.
func (j *Job) Over() bool { return j.over.Load() }

// Pace says how many reads the fastest job makes while this one makes one.
func (j *Job) Pace() float64 { return math.Float64frombits(j.pace.Load()) }

// goesOn says that a plan only tells how far this job is.
func (j *Job) goesOn(p Plan) bool {
	old := j.Plan
	old.Reads, old.Batch, old.By = p.Reads, p.Batch, p.By
	return p.Told && old == p
}

// Reads returns how many samples the job has read since it announced its plan.
func (j *Job) Reads() uint64 {
	if j.Plan.Told {
		return j.told.Load()
	}
	n := j.count(shm.Hits) + j.count(shm.Misses)
	return n - min(n, j.Plan.Reads)
}

// count returns a counter of the job's client.
func (j *Job) count(k shm.Counter) uint64 { return j.segment.Count(j.Plan.Owner-1, k) }

// Position returns the epoch of a read, its number among the reads of this epoch, and their number.
func (j *Job) Position(read uint64) (epoch, at, of uint64) {
	begin, number := uint64(0), uint64(0)
	of = j.first
	if read >= j.first {
		number = 1 + (read-j.first)/j.whole
		begin, of = j.first+(number-1)*j.whole, j.whole
	}
	return j.Plan.Epoch + number, read - begin, of
}

// epochsOf returns the epoch of a read, and the next one.
func (j *Job) epochsOf(read uint64) *epochs {
	number, at, of := j.Position(read)
	e := &epochs{begin: read - at, reads: of}
	if e.begin == 0 && number == j.Plan.Epoch {
		e.from = j.Plan.Shard.From
	}
	e.now, _ = j.Plan.Order.Epoch(number) // newJob has checked the order
	e.then, _ = j.Plan.Order.Epoch(number + 1)
	return e
}

// Fill writes the samples of reads from one on to dst.
func (j *Job) Fill(dst []int, read uint64) {
	for done := 0; done < len(dst); {
		e := j.epochs.Load()
		if read+uint64(done)-e.begin >= e.reads { // it is ahead of the job, so next would not want it
			e = j.epochsOf(read + uint64(done))
		}
		shard := j.Plan.Shard
		shard.From = e.from
		part, err := shard.Of(e.now)
		if err != nil {
			panic(err) // newJob has checked the shard
		}
		done += part.Fill(dst[done:], read+uint64(done)-e.begin)
	}
}

// at is epochsOf, mostly without an allocation.
func (j *Job) at(read uint64) *epochs {
	e := j.epochs.Load()
	if read-e.begin >= e.reads { // also if read is below begin
		e = j.epochsOf(read)
		j.epochs.Store(e)
	}
	return e
}

// next returns in how many reads of the fastest job this one reads a sample, 1 if it is the next one;
// policy.Unread: not in this epoch and not in the next one.
func (j *Job) next(sample uint64) uint64 {
	n := j.until(sample)
	if n == policy.Unread {
		return n
	}
	return uint64(float64(n)*j.Pace()) + 1
}

// until returns how many reads this job makes before it reads a sample; policy.Unread as in next.
//
// The last batch counts as not read yet. Its samples may still be on their way: they are read from the
// source, or copied out of the cache.
func (j *Job) until(sample uint64) uint64 {
	read := j.Reads()
	read -= min(read, j.behind)
	e := j.at(read)
	shard := &j.Plan.Shard
	n, ok := numberOf(e.now, e.from, shard, sample)
	if n += e.begin; !ok || n < read || n-e.begin >= e.reads {
		n, ok = numberOf(e.then, 0, shard, sample)
		if !ok || n >= j.whole {
			return policy.Unread
		}
		n += e.begin + e.reads
	}
	return n - read
}

// numberOf returns which read of a rank a sample is in an epoch; false: another rank reads it, or it
// was read before.
func numberOf(e *order.Epoch, from uint64, shard *order.Shard, sample uint64) (uint64, bool) {
	position := e.Position(sample) - from // wraps around for a sample that was read before
	if position >= e.Positions() || position%shard.Ranks != shard.Rank {
		return 0, false
	}
	return position / shard.Ranks, true
}
