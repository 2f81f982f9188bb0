package simulate

import (
	"testing"
)

// Batches are looked up before their misses are stored, and some batches ahead. A sample that comes between its miss
// and its load is a hit. Jobs read a batch in turn.
func TestBatches(t *testing.T) {
	for what, c := range map[string]struct {
		jobs         int
		reads        []uint32
		batch, ahead int
		hits         [2]uint64 // of the two halves of the reads
		first        int
	}{
		"sample by sample":                   {1, []uint32{0, 1, 2, 3, 0, 2, 1, 3}, 0, 0, [2]uint64{0, 0}, 0},
		"batches":                            {1, []uint32{0, 1, 2, 3, 0, 2, 1, 3}, 2, 0, [2]uint64{0, 2}, 0},
		"one ahead":                          {1, []uint32{0, 1, 2, 3, 0, 1, 2, 3}, 2, 1, [2]uint64{0, 4}, 0},
		"the first batches of an epoch":      {1, []uint32{0, 1, 2, 3, 1, 0, 3, 2}, 1, 2, [2]uint64{0, 4}, 0},
		"batches of one are as no batches":   {1, []uint32{0, 1, 2, 3, 0, 2, 1, 3}, 1, 0, [2]uint64{0, 0}, 0},
		"a sample twice in a batch":          {1, []uint32{4, 4, 4, 4}, 2, 0, [2]uint64{1, 2}, 0},
		"missed again before the first one":  {1, []uint32{4, 4, 4, 4}, 1, 1, [2]uint64{1, 2}, 0},
		"two jobs":                           {2, []uint32{0, 1, 2, 3, 1, 0, 3, 2}, 2, 0, [2]uint64{0, 2}, 0},
		"three at once when an epoch begins": {1, []uint32{0, 1, 2, 3, 3, 4, 1, 0}, 1, 1, [2]uint64{0, 2}, 3},
	} {
		n := len(c.reads)
		trace := &Trace{Samples: 5, Jobs: c.jobs, Accesses: c.reads, Ends: []int{n / 2, n}}
		epochs := run(t, trace, "fifo", 2, Options{Batch: c.batch, Ahead: c.ahead, First: c.first})
		if got := [2]uint64{epochs[0].Hits, epochs[1].Hits}; got != c.hits {
			t.Errorf("%s: %v hits, want %v", what, got, c.hits)
		}
	}
}

// A loader looks up 768 samples before it stores them. So policies that evict have more hits in a small cache, and
// policies that do not have as many as before: an epoch of our loader of 4,000 samples and 1,004 slots had these
// (docs/guides/simulate.md).
func TestBatchesAsALoader(t *testing.T) {
	trace := shuffled(t, 4000, 4, 1)
	o := busy
	o.Batch, o.Ahead = 256, 2
	for name, want := range map[string]float64{"lru": 0.0892, "fifo": 0.0988, "clock": 0.1133, "lfu": 0.119,
		"random": 0.1258, "first-come": 0.251, "cost": 0.25} {
		if got := run(t, trace, name, 1004, o)[3].HitRate(); got < 0.9*want || got > 1.1*want {
			t.Errorf("%s hits %.4f; a loader hit %.4f", name, got, want)
		}
	}
}
