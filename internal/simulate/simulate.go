// Package simulate runs policies over what jobs or nodes read, and says how often each hits and how much
// time it saves: what `stocached simulate` shows.
//
// A Trace is made from orders (readers.go) or a file (files.go). Run reads it as loaders do, through caches with the
// policies of package policy, unchanged (cache.go).
package simulate

import (
	"github.com/stocached/stocached/internal/verify/arena"
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
	Saved       float64 // the part of these that hits saved
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
	// Read is that of Cache.
	Read(sample uint32, nanoseconds uint64) bool
	// replaced is the number of samples that went for others so far.
	replaced() uint64
}

// reader is a job, or a node.
type reader struct {
	cache
	seed   uint64      // the seed of measured times
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
	Options
	kind    policy.Kind
	readers []reader
	plans   *future // the future of the jobs; nil: the policy needs none
	tier    cache
}

// Run reads a trace through caches with this room each: in samples, or in bytes if the trace has Sizes. It
// tells progress now and then how many reads are done.
func (t *Trace) Run(kind policy.Kind, room uint64, o Options, progress func(reads int)) []Epoch {
	r := &runner{Trace: t, Options: o, kind: kind, readers: make([]reader, len(t.Epochs[0])),
		tier: NewCache(policy.KindFirstCome, t.Samples, o.Tier, 0)}
	size := max(o.Batch, 1)
	if kind.NeedsPlans() {
		r.plans = newFuture(t, size)
	}
	shared := r.cache(room, o.Seed)
	for k := range r.readers {
		r.readers[k] = reader{cache: shared, seed: o.Seed, epochs: make([]Epoch, len(t.Epochs))}
		if t.kept != nil {
			seed := o.Seed + uint64(k)
			r.readers[k].cache, r.readers[k].seed, r.readers[k].keeps = r.cache(room, seed), seed, t.kept[k]
		}
	}
	done := 0
	for at, batch := range inBatches(t.Epochs, size) {
		if progress != nil && at.number%1024 == 0 {
			progress(done)
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
	return r.sum()
}

func (r *runner) cache(room, seed uint64) cache {
	if r.Sizes != nil && r.kind.Evicts() && room < r.Room() {
		return arenaCache{arena.New(r.kind, room, uint64(r.Samples), r.Typical(), seed), r.Sizes}
	}
	c := NewCache(r.kind, r.Samples, room, seed)
	if r.plans != nil {
		c.Next = r.plans.next
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
			of.Read(sample, 0)
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
		before, took := of.replaced(), uint64(0)
		if r.kind.NeedsCosts() {
			took = r.measured(r.Options, of.seed, sample, epoch)
		}
		if of.Read(sample, took) {
			return true
		}
		of.epochs[now].Replaced += of.replaced() - before
	}
	if r.tier.Read(sample, 0) {
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
