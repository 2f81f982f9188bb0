package simulate

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/arena"
	"github.com/stocached/stocached/policy"
)

// Samples that differ in size lie in slots and go as in an arena that evicts, of which tests of package cache
// and of C say that caches do the same. So any policy looks at large samples more often.
func TestSizesAsInAnArena(t *testing.T) {
	const samples = 2000
	trace := shuffled(t, samples, 4, 1)
	trace.Seconds = Lognormal(samples, 0.6, 3)
	for _, s := range Lognormal(samples, 1, 4) {
		trace.Sizes = append(trace.Sizes, uint64(s*1e7))
	}
	room := trace.Room() / 4
	for kind := policy.KindCost; kind <= policy.KindLFU; kind++ {
		a, hits, evicted := arena.New(kind, room, samples, trace.Typical(), busy.Seed), uint64(0), uint64(0)
		for at, batch := range inBatches(trace.Epochs, 1) {
			sample := batch[0]
			if a.Get(int(sample)) {
				hits++
			} else {
				a.Set(int(sample), trace.Sizes[sample], trace.measured(busy, busy.Seed, sample, at.epoch))
			}
		}
		for _, e := range run(t, trace, kind.String(), room, busy) {
			hits -= e.Hits
			evicted += e.Replaced
		}
		if hits != 0 || evicted != a.Evicted || evicted == 0 || a.Loss().Sum() > 0.15 {
			t.Errorf("%v: %d hits more, %d evicted, simulated %d, %+v", kind, int64(hits), a.Evicted, evicted, a.Loss())
		}
	}
	if hits := run(t, trace, "random", room, busy)[3].HitRate(); hits < 0.2 {
		t.Errorf("random hits %.3f: large samples do not go first", hits)
	}
}
