package client

import (
	"errors"

	"github.com/stocached/stocached/order"
)

// Loads is what programs that load samples by themselves need beside GetOrLoad, such as package loader. It lives as long
// as its Cache, and is safe for concurrent use.
type Loads struct{ c *Cache }

// Loads returns the Loads of the cache.
func (c *Cache) Loads() Loads { return Loads{c} }

// MeasureNext says whether the caller should measure its next load and tell SetParts: each with PolicyCost, else the
// first ones and then one in 16, which is enough for `stocached advise`.
func (l Loads) MeasureNext() bool { return l.c.c.MeasureNext() }

// CountPassed adds to the counter "passed": samples outside the schema that a wrapper did not
// cache. It returns ErrClosed.
func (l Loads) CountPassed(n uint64) error { return l.c.c.CountPassed(n) }

// Keep makes this handle store only samples of a set, such as order.Owners.Keep returns for a node: Out
// for others, unless the cache has them. A server stores no others for fetches of this handle. nil: all
// samples again. Other handles are not concerned.
func (l Loads) Keep(kept *order.Kept) {
	c := l.c
	if kept == nil {
		c.kept.Store(nil)
		c.c.Keep(nil)
		return
	}
	set := *kept
	c.kept.Store(&set)
	c.c.Keep(set.Has)
}

// keeps says whether this handle stores a sample.
func (c *Cache) keeps(i int) bool {
	kept := c.kept.Load()
	return kept == nil || kept.Has(uint64(i))
}

// Below returns how many samples the disk below a served cache holds, with copies of those in memory. 0: there is none,
// or samples differ in size.
func (l Loads) Below() int { return int(l.c.seg.Region.Below().Load()) }

// FromDisk appends a sample of Options.Disk to dst and says whether it was there. It puts the sample into the cache,
// unless the disk has no room for all samples and the policy of the cache keeps what it has: then they hold different
// ones. A copy from the disk is no load: it has no cost. Without a disk it returns false.
func (l Loads) FromDisk(i int, dst []byte) ([]byte, bool) {
	c := l.c
	if c.disk == nil {
		return dst, false
	}
	at, need := len(dst), c.sampleBytes()
	if c.seg.Variable() {
		need = 0
	}
	for {
		if cap(dst)-at < need {
			dst = append(make([]byte, 0, at+need), dst...)
		}
		n, hit, err := c.disk.Get(i, dst[at:cap(dst)])
		switch {
		case hit:
			dst = dst[:at+n]
			if !c.apart() {
				_, _ = c.Set(i, dst[at:], 0) // a full or read-only cache is no error
			}
			return dst, true
		case errors.Is(err, ErrSchema):
			need = n
		default:
			return dst[:at], false
		}
	}
}

// ToDisk stores a loaded sample in Options.Disk, as SetLater of the disk does, after the set of the cache. If they hold
// different samples, and the cache has it, the disk does not get it. Without a disk it does nothing.
func (l Loads) ToDisk(i int, data []byte) {
	c := l.c
	if c.disk == nil {
		return
	}
	if state, err := c.c.State(i); err != nil || state != StateReady || !c.apart() {
		_, _ = c.disk.SetLater(i, data)
	}
}

// apart says whether disk and memory should hold different samples: the disk has no room for all of them, and what the
// cache in memory takes stays there. docs/spec/tiers.md
func (c *Cache) apart() bool {
	d, p := c.disk.seg, c.seg.Policy
	return !d.Variable() && d.Slots < d.Samples && (!p.Evicts() || p == PolicyCost)
}
