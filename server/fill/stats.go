package fill

import (
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/source/wrap"
)

// Stats count the work of a filler. A filler that replaces another one goes on with its Stats.
type Stats struct {
	Fills   Histogram
	Loads   Loads
	GivenUp atomic.Uint64 // reads that took too long
	Shared  atomic.Uint64 // fetches that needed no read of the source: another client's, or an earlier one, had read it
}

// Loads add up what loads cost in a cache that needs costs.
type Loads struct{ all, source atomic.Uint64 } // nanoseconds

func (l *Loads) add(c loadtime.Cost) {
	l.all.Add(uint64(c.All))
	l.source.Add(uint64(c.Source))
}

// Seconds returns what all loads cost, and of that the waits for the source.
func (l *Loads) Seconds() (all, source float64) {
	return time.Duration(l.all.Load()).Seconds(), time.Duration(l.source.Load()).Seconds()
}

// Histogram counts how long fills took.
type Histogram struct {
	buckets [len(wrap.SecondsBounds) + 1]atomic.Uint64
	nanos   atomic.Uint64
}

func (h *Histogram) add(d time.Duration) {
	k := 0
	for k < len(wrap.SecondsBounds) && d.Seconds() > wrap.SecondsBounds[k] {
		k++
	}
	h.buckets[k].Add(1)
	h.nanos.Add(uint64(d))
}

// Snapshot returns for each bound how many fills took no longer, the number of all fills, and the
// sum of their seconds.
func (h *Histogram) Snapshot() (upTo map[float64]uint64, count uint64, sum float64) {
	upTo = map[float64]uint64{}
	for k, bound := range wrap.SecondsBounds {
		count += h.buckets[k].Load()
		upTo[bound] = count
	}
	return upTo, count + h.buckets[len(wrap.SecondsBounds)].Load(), time.Duration(h.nanos.Load()).Seconds()
}

// Quantile estimates the time that the fastest part q of n fills took at most. Like Prometheus, it
// assumes that times are spread evenly between two bounds. A time above the last bound counts as
// the last bound.
func Quantile(q float64, upTo map[float64]uint64, n uint64) float64 {
	rank := q * float64(n)
	below, before := 0.0, uint64(0)
	for _, bound := range wrap.SecondsBounds {
		if count := upTo[bound]; float64(count) >= rank && count > before {
			return below + (bound-below)*(rank-float64(before))/float64(count-before)
		}
		below, before = bound, upTo[bound]
	}
	return below
}
