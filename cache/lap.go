package cache

import "github.com/stocached/stocached/shm"

// lapSearches: after so many searches for a victim a client looks whether the lap is over (docs/spec/segment.md, Laps).
const lapSearches = 64

// lapSums are what the counters of all clients count since the creation of the cache.
type lapSums struct{ reads, evicted uint64 }

func (c *Cache) lapSums() (n lapSums) {
	for r := range c.seg.RecordsUsed() {
		n.reads += c.seg.Count(r, shm.Hits) + c.seg.Count(r, shm.Misses)
		n.evicted += c.seg.Count(r, shm.Evicted)
	}
	return n
}

// endLap begins a new lap if one is over.
func (c *Cache) endLap() {
	if c.searches.Add(1)%lapSearches != 0 {
		return
	}
	reads, evicted, replaced := c.seg.Lap()
	begin, sums := reads.Load(), c.lapSums()
	if sums.reads < begin+c.samples || !reads.CompareAndSwap(begin, sums.reads) {
		return
	}
	replaced.Store(sums.since(begin, evicted.Load(), c.samples))
	evicted.Store(sums.evicted)
}

// since returns how many samples went for others, for as many reads as there are samples.
func (n lapSums) since(reads, evicted, samples uint64) uint64 {
	part := float64(samples) / float64(max(n.reads-min(reads, n.reads), 1))
	return uint64(float64(n.evicted-min(evicted, n.evicted))*part + 0.5)
}

// replaced returns how many samples went for others in the last lap: those of this lap so far, and for the rest of it
// as many as in the lap before.
func (c *Cache) replaced(now lapSums) uint64 {
	reads, evicted, replaced := c.seg.Lap()
	begin := reads.Load()
	if now.reads >= begin+c.samples {
		return now.since(begin, evicted.Load(), c.samples)
	}
	rest := float64(c.samples-(now.reads-min(begin, now.reads))) / float64(c.samples)
	return now.evicted - min(evicted.Load(), now.evicted) + uint64(float64(replaced.Load())*rest+0.5)
}
