// Package advise says what memory buys: the time of an epoch against the memory of its cache, from the
// measured costs of samples. It is what `stocached advise` shows.
//
// Data are what was measured: cache.go reads them from a cache, and run.go from a recorded timeline.
// Curve (curve.go) computes from them, with the simulator for the policy cost, and Tries (try.go) says what
// to change.
package advise

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/stocached/stocached/internal/timeline"
)

// ErrUnknown is the error of a cache or a run without measured costs. Its text says the next step.
var ErrUnknown = errors.New("there is nothing to advise from")

// Data are what was measured. Sizes are of samples, without the tables of a cache.
type Data struct {
	Name        string
	Samples     int       // samples of the dataset
	SampleBytes uint64    // bytes of each, or their mean
	Seconds     []float64 // to load each sample whose cost is known
	Sizes       []uint64  // bytes of each of these; nil: alike
	Noise       float64   // standard deviation of the logarithm of a measured time
	Stalls      bool      // few measurements are much too long, beside the noise
	Pace        Pace
	Loop        bool // Pace is that of a training loop, and no guess
	Run         *timeline.Epoch
	Today       Today
	Notes       []string // for people
}

// Today is what was measured.
type Today struct {
	Part    float64 // part of the samples that the cache has; of their bytes if they differ in size
	Room    float64 // part of the samples that fit, likewise; 0: unknown
	Seconds float64 // time of an epoch; 0: it follows from Load
	Load    float64 // time to load the samples that are not cached
	Policy  string  // "": unknown
	// Simulated: Load is that of an epoch with the policy, whose set changes all the time.
	Simulated bool
}

// Pace says how the time of an epoch follows from that of its loads.
type Pace struct {
	Share   float64  // part of the dataset that an epoch of this training loop reads
	Workers int      // load side by side; 0: the training loop loads
	CPUs    int      // for the workers; 0: unknown
	Source  *float64 // part of the loads in which they wait for their source; nil: unknown
	Augment float64  // further work of the workers, for hits too
	Collate float64  // part of Augment: they make batches
	Limits  []Limit
}

// Limit is a part of an epoch that takes so long however fast samples are loaded.
type Limit struct {
	Name    string
	Seconds float64
}

// Names of limits that are not in Limits. loading is either of the two before it.
const (
	source     = "the source"
	decoding   = "decoding"
	loading    = "loading"
	augmenting = "augment="
	collating  = "collating"
)

// Step is the name of the limit that --step sets.
const Step = "the training step"

// others names what takes longest of the further work of workers.
func (p *Pace) others() string {
	if 2*p.Collate > p.Augment {
		return collating
	}
	return augmenting
}

// loads names what takes longest in loads.
func (p *Pace) loads() string {
	switch {
	case p.Source == nil:
		return loading
	case *p.Source < 0.5:
		return decoding
	}
	return source
}

// Epoch returns the time of an epoch whose loads take so long together, and what is the limit.
func (p *Pace) Epoch(load float64) (seconds float64, limit string) {
	work := load + p.Augment
	limit = p.loads()
	if load < p.Augment {
		limit = p.others()
	}
	if p.Workers == 0 { // one after the other
		for _, l := range p.Limits {
			if seconds += l.Seconds; l.Seconds > max(load, p.Augment) {
				limit = l.Name
			}
		}
		return seconds + work, limit
	}
	seconds = work / float64(p.Workers)
	decode := 0.0 // as far as it is known
	if p.Source != nil {
		decode = load * (1 - *p.Source)
	}
	// More workers than processors compute no faster.
	if computing := (decode + p.Augment) / float64(p.CPUs); p.CPUs > 0 && computing > seconds {
		if seconds, limit = computing, decoding; decode < p.Augment {
			limit = p.others()
		}
	}
	for _, l := range p.Limits {
		if l.Seconds > seconds {
			seconds, limit = l.Seconds, l.Name
		}
	}
	return seconds, limit
}

// fewestLoads: the mean of fewer may be off by a third by chance.
const fewestLoads = 30

// Loaded returns what limits an epoch in which everything is cached, the longest first: as long as the first one takes
// longer than the others, they do not matter. Nothing: an epoch takes no time then, as far as is known.
func (p *Pace) Loaded() []Limit {
	all := append([]Limit{{Name: p.others(), Seconds: p.Augment / float64(max(p.Workers, 1))}}, p.Limits...)
	slices.SortStableFunc(all, func(a, b Limit) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return slices.DeleteFunc(all, func(l Limit) bool { return l.Seconds == 0 })
}

// check returns an error for data that say nothing or little, and notes what they do not say.
func (d *Data) check(next string) error {
	total := 0.0
	for _, s := range d.Seconds {
		total += s
	}
	if !(total > 0) || math.IsInf(total, 0) {
		return fmt.Errorf("%w: %s", ErrUnknown, next)
	}
	known, needed := len(d.Seconds), min(d.Samples, fewestLoads)
	if known < needed {
		return fmt.Errorf("%w: the loads of only %d of the %d samples of %s were measured, and fewer than %d say little. "+
			"Read more samples and ask again, or record an epoch with trace=\"run.json\"", ErrUnknown, known, d.Samples, d.Name, needed)
	}
	if known < d.Samples {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: the costs of %d of its %d samples are known; the others count as "+
			"these do on average", d.Name, known, d.Samples))
	}
	return nil
}
