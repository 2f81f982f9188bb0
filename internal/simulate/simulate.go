// Package simulate runs policies over a trace and says how often each hits and how much time it
// saves. It runs the code of package policy unchanged.
package simulate

import (
	"fmt"

	"github.com/stocached/stocached/policy"
)

// Options say how loads are measured.
type Options struct {
	Seed   uint64
	Noise  float64 // standard deviation of the logarithm of a measured cost
	Stalls bool    // 1 load in 200 takes 20 times as long
	Hints  bool    // a cache knows what this epoch has read already
}

// Epoch is what a policy did in one epoch.
type Epoch struct {
	Reads, Hits uint64
	Loads       uint64  // reads that were no hits
	Replaced    uint64  // samples that went for others
	Seconds     float64 // to load all reads
	Saved       float64 // of these, by hits
}

// cache is a policy at work.
type cache interface {
	// access reads a sample, and says whether it was a hit.
	access(sample uint32, epoch int) bool
	// replaced is the number of samples that went for others so far.
	replaced() int
}

func newCache(t *Trace, o *Options, name string, room uint64) (cache, error) {
	if k, err := policy.Parse(name); err == nil {
		return newOurs(t, o, k, room), nil
	}
	for _, r := range references {
		if r.name == name {
			return r.make(t, room), nil
		}
	}
	return nil, fmt.Errorf("unknown %s", name)
}

// Run reads a trace through a cache.
func Run(t *Trace, o Options, name string, room uint64, progress func(accesses int)) ([]Epoch, error) {
	c, err := newCache(t, &o, name, room)
	if err != nil {
		return nil, err
	}
	epochs := make([]Epoch, len(t.Ends))
	at := 0
	for number, end := range t.Ends {
		e := &epochs[number]
		before := c.replaced()
		for ; at < end; at++ {
			if at&0xffff == 0 && progress != nil {
				progress(at)
			}
			sample := t.Accesses[at]
			seconds := t.seconds(sample)
			e.Reads++
			e.Seconds += seconds
			if c.access(sample, number) {
				e.Hits++
				e.Saved += seconds
			}
		}
		e.Loads = e.Reads - e.Hits
		e.Replaced = uint64(c.replaced() - before)
	}
	return epochs, nil
}
