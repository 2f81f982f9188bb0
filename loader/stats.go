package loader

import (
	"sync/atomic"
	"time"
)

// Stats count what a loader has done. Batches that were made but not delivered count only in Gather
// and Load.
type Stats struct {
	Batches uint64
	Samples uint64
	Hits    uint64 // samples that were in the cache
	Misses  uint64 // samples that were loaded, or came from a disk cache
	Bytes   uint64
	Wait    time.Duration // the caller waited for batches
	Step    time.Duration // the caller worked on batches
	Gather  time.Duration // the loader copied hits
	Load    time.Duration // workers loaded misses; sum over all workers
}

// HitRate is the fraction of samples that were in the cache; 0 before the first one.
func (s Stats) HitRate() float64 {
	if s.Samples == 0 {
		return 0
	}
	return float64(s.Hits) / float64(s.Samples)
}

// Stats returns the counters. It reads one after the other while others count, so they belong to no
// single moment.
func (l *Loader) Stats() Stats {
	t := &l.counters
	return Stats{Batches: t.batches.Load(), Samples: t.samples.Load(), Hits: t.hits.Load(),
		Misses: t.samples.Load() - t.hits.Load(), Bytes: t.bytes.Load(), Wait: t.wait.load(),
		Step: t.step.load(), Gather: t.gather.load(), Load: t.load.load()}
}

type counters struct {
	batches, samples, hits, bytes atomic.Uint64
	wait, step, gather, load      duration
}

func (t *counters) batch(b *buffer) {
	t.batches.Add(1)
	t.hits.Add(uint64(b.hits)) // before samples, so that hits never exceed them
	t.samples.Add(uint64(len(b.indices)))
	t.bytes.Add(uint64(b.bytes()))
}

type duration struct{ ns atomic.Int64 }

func (d *duration) add(t time.Duration) { d.ns.Add(int64(t)) }

func (d *duration) load() time.Duration { return time.Duration(d.ns.Load()) }
