// Package simulate runs policies over what jobs or nodes read, and says how often each hits and how much
// time it saves: what `stocached simulate` shows.
//
// A Trace is made from orders (readers.go) or a file (files.go). Run reads it as loaders do, through caches with the
// policies of package policy, unchanged (cache.go). Replay gives single decisions, to compare a real cache with.
package simulate

import (
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// Options say how loads are measured, and what loaders and nodes do.
type Options struct {
	Seed   uint64
	Noise  float64 // standard deviation of the logarithm of a measured time
	Stalls bool    // 1 load in 200 takes 20 times as long
	// Batch: a job looks up so many samples together, and stores their misses when it has looked up Ahead more batches.
	// 0: it looks up and stores one sample after the other.
	Batch, Ahead int
	Tier         uint64 // samples that the cluster tier of nodes holds; it keeps the first ones
}

// Epoch is what a policy did in one epoch.
type Epoch struct {
	Reads, Hits uint64
	Replaced    uint64  // samples that went for others
	Seconds     float64 // to load all samples that were read
	Saved       float64 // of these, by hits
	// Tier and Source are where the other samples came from. In the first epoch, servers of nodes also load what their
	// nodes own and others read.
	Tier, Source uint64
	Least        float64 // hit rate of the job or node that has the lowest
	Link         uint64  // loads of the job or node that has most
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

// reader is a job, or a node.
type reader struct {
	cache
	keeps  *order.Kept // what the cache takes; nil: any sample
	missed []missed    // the batches whose misses are not stored yet
	epochs []Epoch
}

// missed is what a batch of an epoch missed.
type missed struct {
	samples []uint32
	epoch   int
}

// runner runs a policy over a trace.
type runner struct {
	*Trace
	readers []reader
	plans   *future // of the jobs; nil: the policy needs none
	tier    cache   // nil: none
}

// progressEvery is in reads.
const progressEvery = 1 << 16

// Run reads a trace through caches with this room each: in samples, or in bytes if the trace has Sizes.
// It calls progress now and then with the reads that are done, and ends with its error.
func (t *Trace) Run(name string, room uint64, o Options, progress func(reads int) error) ([]Epoch, error) {
	kind, err := policy.Parse(name)
	if err != nil {
		return nil, err
	}
	r, size := t.newRun(kind, room, o), max(o.Batch, 1)
	done, told := 0, -progressEvery
	for at, batch := range inBatches(t.Epochs, size) {
		if progress != nil && done-told >= progressEvery {
			told = done
			if err := progress(done); err != nil {
				return nil, err
			}
		}
		if at.number == 0 || at.number >= o.Ahead { // when an epoch begins, Ahead batches are looked up at once
			r.store(at.reader, at.epoch, o.Ahead)
		}
		r.lookUp(at.reader, at.epoch, batch)
		if o.Batch == 0 {
			r.store(at.reader, at.epoch, 0)
		}
		done += len(batch)
	}
	for k := range r.readers {
		r.store(k, len(t.Epochs)-1, 0)
	}
	return r.sum(), nil
}

func (t *Trace) newRun(kind policy.Kind, room uint64, o Options) *runner {
	r := &runner{Trace: t, readers: make([]reader, len(t.Epochs[0]))}
	if kind.NeedsPlans() {
		r.plans = newFuture(t, max(o.Batch, 1))
	}
	if o.Tier > 0 {
		r.tier = newPolicyCache(t, &o, policy.KindFirstCome, o.Tier)
	}
	shared := t.cache(kind, room, o, r.plans)
	for k := range r.readers {
		r.readers[k] = reader{cache: shared, epochs: make([]Epoch, len(t.Epochs))}
		if t.kept != nil {
			own := o
			own.Seed += uint64(k)
			r.readers[k].cache, r.readers[k].keeps = t.cache(kind, room, own, nil), t.kept[k]
		}
	}
	return r
}

func (t *Trace) cache(kind policy.Kind, room uint64, o Options, plans *future) cache {
	if t.Sizes != nil && kind.Evicts() && !kind.NeedsPlans() && room < t.Room() {
		return newArenaCache(t, &o, kind, room)
	}
	c := newPolicyCache(t, &o, kind, room)
	if plans != nil {
		c.next = plans.next
	}
	return c
}

// lookUp looks up a batch. A hit is a sample that the cache has now, or that comes before the reader loads it.
func (r *runner) lookUp(number, epoch int, batch []uint32) {
	of := &r.readers[number]
	e := &of.epochs[epoch]
	e.Reads += uint64(len(batch))
	var misses []uint32
	for _, sample := range batch {
		seconds := r.seconds(sample)
		e.Seconds += seconds
		if r.plans != nil {
			r.plans.pass(sample)
		}
		if of.has(sample) {
			of.access(sample, epoch)
			e.Hits++
			e.Saved += seconds
		} else {
			misses = append(misses, sample)
		}
	}
	of.missed = append(of.missed, missed{misses, epoch})
}

// store loads and stores what a reader missed. The last batches, as many as later says, wait.
func (r *runner) store(number, now, later int) {
	of := &r.readers[number]
	for ; len(of.missed) > later; of.missed = of.missed[1:] {
		m := of.missed[0]
		for _, sample := range m.samples {
			if r.load(number, sample, m.epoch, now) {
				of.epochs[m.epoch].Hits++
				of.epochs[m.epoch].Saved += r.seconds(sample)
			}
			if r.owners != nil && m.epoch == 0 {
				// below 0: no cache has room to own it
				if owner := r.owners.Owner(uint64(sample)); owner >= 0 && owner != number {
					r.load(owner, sample, 0, 0)
				}
			}
		}
	}
}

// load loads and stores a sample, and says whether it has come since it was missed.
func (r *runner) load(number int, sample uint32, epoch, now int) bool {
	of := &r.readers[number]
	if of.keeps == nil || of.keeps.Has(uint64(sample)) || of.has(sample) {
		before := of.replaced()
		if of.access(sample, epoch) {
			return true
		}
		of.epochs[now].Replaced += of.replaced() - before
	}
	if r.tier != nil && r.tier.access(sample, epoch) {
		of.epochs[epoch].Tier++
	} else {
		of.epochs[epoch].Source++
	}
	return false
}

// sum returns the epochs of all readers together.
func (r *runner) sum() []Epoch {
	all := make([]Epoch, len(r.Epochs))
	for number := range all {
		e := &all[number]
		e.Least = 1
		for _, of := range r.readers {
			one := of.epochs[number]
			e.Reads, e.Hits, e.Replaced = e.Reads+one.Reads, e.Hits+one.Hits, e.Replaced+one.Replaced
			e.Seconds, e.Saved = e.Seconds+one.Seconds, e.Saved+one.Saved
			e.Tier, e.Source = e.Tier+one.Tier, e.Source+one.Source
			e.Least = min(e.Least, one.HitRate())
			e.Link = max(e.Link, one.Tier+one.Source)
		}
	}
	return all
}
