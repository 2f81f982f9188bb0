package cache

import "github.com/stocached/stocached/shm"

// lapEvery: after so many evictions a client looks whether the lap is over (docs/spec/segment.md, Laps).
const lapEvery = 64

// lapSums are what the counters of all clients count since the creation of the cache.
type lapSums struct{ reads, evicted uint64 }

func (c *Cache) lapSums() (n lapSums) {
	for r := range c.recordsUsed() {
		for stripe := range shm.CounterStripes {
			n.reads += c.seg.Counter(r, stripe, shm.Hits).Load() + c.seg.Counter(r, stripe, shm.Misses).Load()
			n.evicted += c.seg.Counter(r, stripe, shm.Evicted).Load()
		}
	}
	return n
}

// countEviction counts a sample that went for another one, and begins a new lap if one is over.
func (c *Cache) countEviction() {
	c.count(shm.Evicted, 1)
	if c.evictions.Add(1)%lapEvery != 0 {
		return
	}
	reads, evicted, replaced := c.seg.Lap()
	begin, now := reads.Load(), c.lapSums()
	if now.reads < begin+c.samples || !reads.CompareAndSwap(begin, now.reads) {
		return
	}
	replaced.Store(now.since(begin, evicted.Load(), c.samples))
	evicted.Store(now.evicted)
}

// since returns how many samples went for others, for as many reads as there are samples.
func (n lapSums) since(reads, evicted, samples uint64) uint64 {
	part := float64(samples) / float64(max(n.reads-min(reads, n.reads), 1))
	return uint64(float64(n.evicted-min(evicted, n.evicted))*part + 0.5)
}

// replaced returns how many samples went for others in the last lap.
func (c *Cache) replaced(now lapSums) uint64 {
	reads, evicted, replaced := c.seg.Lap()
	if begin := reads.Load(); now.reads >= begin+c.samples {
		return now.since(begin, evicted.Load(), c.samples)
	}
	return replaced.Load()
}
