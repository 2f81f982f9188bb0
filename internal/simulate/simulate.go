// Package simulate runs policies over a trace of reads, and says how often each hits and how much
// time it saves: what `stocached simulate` shows.
//
// A Trace is made from orders (orders.go), a recorded timeline (recorded.go) or a file (files.go).
// The policies of package policy run unchanged (cache.go). Bounds to compare with
// know the future (bounds.go). Replay gives single decisions, to compare a real cache with.
package simulate

import (
	"fmt"
	"strings"

	"github.com/stocached/stocached/policy"
)

// Options say how loads are measured, and what a cache knows.
type Options struct {
	Seed   uint64
	Noise  float64 // standard deviation of the logarithm of a measured time
	Stalls bool    // 1 load in 200 takes 20 times as long
	// Served: the jobs read through a server, in batches of so many samples; 0: without one. Samples have one size
	// then.
	Served int
	// Batch: a job looks up so many samples together, and stores their misses when it has looked up Ahead more batches.
	// 0: it looks up and stores one sample after the other. With Served this has no meaning.
	Batch, Ahead int
	// First: so many batches of an epoch are looked up at once when it begins; 0: Ahead of them.
	First int
}

// Epoch is what a policy did in one epoch.
type Epoch struct {
	Reads, Hits uint64
	Shared      uint64  // hits of samples without a slot, with Options.Served
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

// Names returns the names of the policies that caches have, and those of the bounds.
func Names() (ours, others []string) {
	for _, b := range bounds {
		others = append(others, b.name)
	}
	return policy.Names(), others
}

// Check returns policy.ErrUnknown for a name that is not one of Names.
func Check(name string) error {
	if _, err := policy.Parse(name); err == nil || boundOf(name) != nil {
		return nil
	}
	ours, others := Names()
	return fmt.Errorf("%w %q; caches have %s; to compare with, there are %s", policy.ErrUnknown, name,
		strings.Join(ours, ", "), strings.Join(others, ", "))
}

// progressEvery is in reads.
const progressEvery = 1 << 16

// Run reads a trace through a cache with this room: in samples, or in bytes if the trace has Sizes.
// It calls progress now and then with the reads that are done, and ends with its error.
func (t *Trace) Run(name string, room uint64, o Options, progress func(reads int) error) ([]Epoch, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	if o.Batch > 0 && o.Served == 0 && boundOf(name) == nil {
		return t.inBatches(o.Batch).runBatches(name, room, &o, progress)
	}
	plans := t.plans(name)
	c := t.cache(name, room, &o, plans)
	epochs := make([]Epoch, len(t.Ends))
	at := 0
	for number, end := range t.Ends {
		e := &epochs[number]
		before := c.replaced()
		e.Reads = uint64(end - at)
		server, _ := c.(*served)
		if server != nil {
			server.shared = 0
		}
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
		if server != nil {
			e.Shared = server.shared
		}
	}
	return epochs, nil
}

// plans are those of the jobs whose reads a trace has, if a policy needs them; else nil. A reader passes each read before
// it reads the cache.
func (t *Trace) plans(name string) *future {
	if kind, err := policy.Parse(name); err != nil || !kind.NeedsPlans() {
		return nil
	}
	return newFuture(t, t.Planned)
}

func (t *Trace) cache(name string, room uint64, o *Options, plans *future) cache {
	if kind, err := policy.Parse(name); err == nil {
		if o.Served > 0 && t.Jobs > 0 && t.Sizes == nil {
			return newServed(t, o, kind, room, plans)
		}
		if t.Sizes != nil && kind.Evicts() && !kind.NeedsPlans() && room < t.Room() {
			return newArenaCache(t, o, kind, room)
		}
		c := newPolicyCache(t, o, kind, room)
		if plans != nil {
			c.next = plans.next
		}
		return c
	}
	return boundOf(name)(t, room) // Check has seen it
}
