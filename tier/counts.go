package tier

import "sync/atomic"

// Counts are the counters of a tier. The zero value is ready to use.
type Counts struct {
	hits, hitBytes, writes, writeBytes atomic.Uint64

	Misses, LeftOut, Dropped, Refused, Poisoned, Waited, GaveUp atomic.Uint64 // as in Status
}

// Hit counts a sample of n bytes that the tier had.
func (c *Counts) Hit(n int) {
	c.hits.Add(1)
	c.hitBytes.Add(uint64(n))
}

// Written counts a sample of n bytes that was written to the tier.
func (c *Counts) Written(n int) {
	c.writes.Add(1)
	c.writeBytes.Add(uint64(n))
}

// Status returns the counts of a tier of a kind.
func (c *Counts) Status(kind string) Status {
	return Status{Kind: kind, Hits: c.hits.Load(), HitBytes: c.hitBytes.Load(), Misses: c.Misses.Load(),
		LeftOut: c.LeftOut.Load(), Writes: c.writes.Load(), WriteBytes: c.writeBytes.Load(), Dropped: c.Dropped.Load(),
		Refused: c.Refused.Load(), Poisoned: c.Poisoned.Load(), Waited: c.Waited.Load(), GaveUp: c.GaveUp.Load()}
}
