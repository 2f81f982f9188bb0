package wrap

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// Counts are the counters of Watch. The zero value is ready to use. They must not be copied.
// Several sources may share one.
type Counts struct {
	reads   atomic.Uint64
	blocks  atomic.Uint64
	samples atomic.Uint64
	bytes   atomic.Uint64
	errors  [kinds]atomic.Uint64 // in the order of errorKinds
	tries   [kinds]atomic.Uint64
	nanos   atomic.Uint64
	seconds [len(SecondsBounds) + 1]atomic.Uint64
}

// SecondsBounds are the upper bounds of the buckets of seconds: from a read of memory to a timeout
// of a disk.
var SecondsBounds = [...]float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3,
	100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30, 60}

// Snapshot is a copy of Counts. Its numbers are read one after the other, so a read that ends
// during the copy may count in some of them only.
type Snapshot struct {
	Reads      uint64 // calls of Read that ended, failed ones too
	BlockReads uint64 // calls of ReadBlock
	Samples    uint64 // read by either
	Bytes      uint64 // bytes of these samples
	Errors     map[ErrorKind]uint64
	Tries      map[ErrorKind]uint64 // tries that failed, and were followed by another
	// Seconds says for each of SecondsBounds how many reads (of both kinds, failed ones too) took
	// at most that time. All reads are Reads + BlockReads. SecondsSum is the sum of their times.
	Seconds    []uint64
	SecondsSum float64
}

// Snapshot returns a copy of the counts.
func (c *Counts) Snapshot() Snapshot {
	s := Snapshot{Reads: c.reads.Load(), BlockReads: c.blocks.Load(), Samples: c.samples.Load(),
		Bytes: c.bytes.Load(), Errors: map[ErrorKind]uint64{}, Tries: map[ErrorKind]uint64{},
		SecondsSum: time.Duration(c.nanos.Load()).Seconds()}
	for k, e := range errorKinds {
		if e.cache {
			continue
		}
		s.Errors[e.kind] = c.errors[k].Load()
		if !e.ours {
			s.Tries[e.kind] = c.tries[k].Load()
		}
	}
	total := uint64(0)
	for k := range SecondsBounds {
		total += c.seconds[k].Load()
		s.Seconds = append(s.Seconds, total)
	}
	return s
}

func (c *Counts) pass(ctx context.Context, _ <-chan struct{}, r read) (int, error) {
	calls := &c.reads
	if each := r.each; each != nil {
		calls = &c.blocks
		r.each = func(i int, sample []byte) error {
			c.samples.Add(1)
			c.bytes.Add(uint64(len(sample)))
			return each(i, sample)
		}
	}
	begun := time.Now()
	n, err := r.do(ctx)
	taken := time.Since(begun)
	switch {
	case err != nil:
		c.Failed(ctx, err)
	case r.each == nil:
		c.samples.Add(1)
		c.bytes.Add(uint64(n))
	}
	c.nanos.Add(uint64(taken))
	k, _ := slices.BinarySearch(SecondsBounds[:], taken.Seconds())
	c.seconds[k].Add(1)
	calls.Add(1)
	return n, err
}

// Failed counts a read that failed after all tries.
func (c *Counts) Failed(ctx context.Context, err error) { c.errors[kindIndex(ctx, err)].Add(1) }
