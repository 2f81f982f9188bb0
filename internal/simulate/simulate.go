// Package simulate runs policies over a trace of reads, and says how often each hits and how much
// time it saves: what `stocached simulate` shows.
//
// A Trace is made from orders (orders.go), a recorded timeline (recorded.go) or a file (files.go).
// The policies of package policy run unchanged (cache.go). Replay gives single decisions, to compare a real cache with.
package simulate

import "github.com/stocached/stocached/policy"

// Options say how loads are measured, and what a cache knows.
type Options struct {
	Seed   uint64
	Noise  float64 // standard deviation of the logarithm of a measured time
	Stalls bool    // 1 load in 200 takes 20 times as long
	// Batch: a job looks up so many samples together, and stores their misses when it has looked up Ahead more batches.
	// 0: it looks up and stores one sample after the other.
	Batch, Ahead int
	// First: so many batches of an epoch are looked up at once when it begins; 0: Ahead of them.
	First int
}

// Epoch is what a policy did in one epoch.
type Epoch struct {
	Reads, Hits uint64
	Replaced    uint64  // samples that went for others
	Seconds     float64 // to load all samples that were read
	Saved       float64 // of these, by hits
}

// HitRate returns the hits of all reads.
func (e Epoch) HitRate() float64 { return float64(e.Hits) / float64(e.Reads) }

// TimeSaved returns the part of the time of loads that hits saved.
func (e Epoch) TimeSaved() float64 { return e.Saved / e.Seconds }

// cache is a policy at work.
type cache interface {
	// has says whether it has a sample, which changes nothing.
	has(sample uint32) bool
	// access reads a sample, and says whether it was a hit.
	access(sample uint32, epoch int) bool
	// replaced is the number of samples that went for others so far.
	replaced() uint64
}

// progressEvery is in reads.
const progressEvery = 1 << 16

// Run reads a trace through a cache with this room: in samples, or in bytes if the trace has Sizes.
// It calls progress now and then with the reads that are done, and ends with its error.
func (t *Trace) Run(name string, room uint64, o Options, progress func(reads int) error) ([]Epoch, error) {
	kind, err := policy.Parse(name)
	if err != nil {
		return nil, err
	}
	if o.Batch > 0 {
		return t.inBatches(o.Batch).runBatches(kind, room, &o, progress)
	}
	plans := t.plans(kind)
	c := t.cache(kind, room, &o, plans)
	epochs := make([]Epoch, len(t.Ends))
	at := 0
	for number, end := range t.Ends {
		e := &epochs[number]
		before := c.replaced()
		e.Reads = uint64(end - at)
		for ; at < end; at++ {
			if at%progressEvery == 0 && progress != nil {
				if err := progress(at); err != nil {
					return nil, err
				}
			}
			sample := t.Accesses[at]
			seconds := t.seconds(sample)
			e.Seconds += seconds
			if plans != nil {
				plans.pass(sample)
			}
			if c.access(sample, number) {
				e.Hits++
				e.Saved += seconds
			}
		}
		e.Replaced = c.replaced() - before
	}
	return epochs, nil
}

// plans are those of the jobs whose reads a trace has, if a policy needs them; else nil. A reader passes each read before
// it reads the cache.
func (t *Trace) plans(kind policy.Kind) *future {
	if !kind.NeedsPlans() {
		return nil
	}
	return newFuture(t, t.Planned)
}

func (t *Trace) cache(kind policy.Kind, room uint64, o *Options, plans *future) cache {
	if t.Sizes != nil && kind.Evicts() && !kind.NeedsPlans() && room < t.Room() {
		return newArenaCache(t, o, kind, room)
	}
	c := newPolicyCache(t, o, kind, room)
	if plans != nil {
		c.next = plans.next
	}
	return c
}
