package advise

import (
	"math"
	"sync"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// Epoch is what an epoch does, predicted or observed: as many reads as the cache has samples. fewestReads and more are
// observed, and count for as much of them.
type Epoch struct {
	HitRate float64
	Load    float64 // seconds of its loads, summed over workers
	Saved   float64 // seconds that the loads of its hits would have taken
	Evicted float64 // samples that went for others; never predicted
}

// unknown is an epoch that has not been predicted or observed.
var unknown = Epoch{math.NaN(), math.NaN(), math.NaN(), math.NaN()}

// Predict says what an epoch does with as many samples as are cached today, which is a point of the curve of
// New. whole is the time of the loads of an epoch without a cache.
func Predict(d *Data, seed uint64) (e Epoch, whole float64, err error) {
	step := min(int(d.Today.Part*Steps), Steps-1)
	c, err := newCurve(d, seed, step, step+1)
	if err != nil {
		return unknown, math.NaN(), err
	}
	saved, hits := c.Load*c.Saving(Cost, d.Today.Part), d.Today.Part
	if d.Sizes != nil { // a part of the bytes is another part of the samples
		hits = at(c.hits, d.Today.Part)
	}
	return Epoch{HitRate: hits, Load: c.Load - saved, Saved: saved, Evicted: math.NaN()}, c.Load, nil
}

// Track compares what epochs of a cache should do with what they did. The zero value is ready to use, for one
// cache. It is safe for concurrent use.
type Track struct {
	mu        sync.Mutex
	looks     []counters // in their order, the first one an epoch ago or more
	predicted Epoch
	whole     float64
	why       error
	work      uint64 // work of the look before the prediction
	tried     bool
}

// counters of a cache, since its creation.
type counters struct{ hits, reads, loads, stored, evicted uint64 }

func countersOf(seg *shm.Segment) (n counters) {
	for record := range seg.RecordsUsed() {
		hits := seg.Count(record, shm.Hits)
		n.hits += hits
		n.reads += hits + seg.Count(record, shm.Misses)
		n.loads += seg.Count(record, shm.LoadNS)
		n.stored += seg.Count(record, shm.Stored)
		n.evicted += seg.Count(record, shm.Evicted)
	}
	return n
}

const (
	// looksAnEpoch is about how many looks at an epoch Track keeps.
	looksAnEpoch = 100
	// predictions is how many of them an epoch has. One takes 0.1 s, and 0.7 s for each million samples.
	predictions = 10
	// fewestReads: a hit rate of fewer may be off by more than 10 % by chance.
	fewestReads = 100
)

// observedReads is how many reads an observed epoch has at least.
func observedReads(seg *shm.Segment) uint64 { return max(seg.Samples, fewestReads) }

// Look remembers the counters of the cache. The more often it is called, the more exactly the observed epoch
// is as long as one. It takes microseconds, and does nothing while Compare runs.
func (t *Track) Look(seg *shm.Segment) {
	if t.mu.TryLock() {
		t.look(seg)
		t.mu.Unlock()
	}
}

func (t *Track) look(seg *shm.Segment) counters {
	now := countersOf(seg)
	if n := len(t.looks); n >= 2 && now.reads-t.looks[n-2].reads < observedReads(seg)/looksAnEpoch {
		t.looks = t.looks[:n-1] // two looks lie close together: the later one goes
	}
	t.looks = append(t.looks, now)
	for len(t.looks) > 1 && now.reads-t.looks[1].reads >= observedReads(seg) {
		t.looks = t.looks[1:]
	}
	return now
}

// Compare returns what an epoch should do with what is cached now, beside what the last epoch did. Numbers that
// are unknown are NaN; seconds are known with the policy cost only. Without it, the predicted epoch is one of a single
// job that reads each sample once. why says why nothing is predicted, and is nil otherwise. The observed epoch is
// unknown until there were as many reads as an epoch has, and at least 100, since the first look. Its hits and
// the seconds of its loads are counted. What it saved is the rest of the time that the loads of an epoch
// take without a cache.
func (t *Track) Compare(name string, seg *shm.Segment, c *cache.Cache) (predicted, observed Epoch, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.look(seg)
	if work := now.reads + now.stored; !t.tried || work-t.work > seg.Samples/predictions {
		t.tried, t.work = true, work
		t.predicted, t.whole = unknown, math.NaN()
		t.why = t.predict(name, seg, c)
	}
	observed = unknown
	if before := t.looks[0]; now.reads-before.reads >= observedReads(seg) {
		reads := float64(now.reads - before.reads)
		observed.HitRate = float64(now.hits-before.hits) / reads
		observed.Evicted = float64(now.evicted-before.evicted) / reads * float64(seg.Samples)
		if seg.Policy == shm.PolicyCost { // with the others, not each load is measured
			observed.Load = time.Duration(now.loads-before.loads).Seconds() / reads * float64(seg.Samples)
			observed.Saved = max(t.whole-observed.Load, 0) // below 0 for the errors of measured costs
		}
	}
	return t.predicted, observed, t.why
}

// predict sets the prediction: with the policy cost all of it, else its hit rate.
func (t *Track) predict(name string, seg *shm.Segment, c *cache.Cache) error {
	if seg.Policy != shm.PolicyCost {
		stats, err := c.Stats()
		if err == nil {
			t.predicted.HitRate, err = hitRate(name, seg, stats.Ready, 0)
		}
		return err
	}
	d, err := Cache(name, seg, c)
	if err == nil {
		t.predicted, t.whole, err = Predict(d, 0)
	}
	return err
}
