package cli

import (
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/shm"
)

// readCostly reads samples of a cache with the policy cost, as a training loop does. seconds are what loads take.
func readCostly(t *testing.T, c *cache.Cache, samples []int, seconds []float64) {
	t.Helper()
	dst := make([]byte, 100)
	for _, i := range samples {
		if _, hit, err := c.Get(i, dst); err != nil {
			t.Fatal(err)
		} else if !hit {
			if _, err := c.SetLoaded(i, [][]byte{content(i, 100)}, 0, time.Duration(seconds[i]*1e9)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantAgreed checks whether what is predicted is what was observed, within 5 %.
func wantAgreed(t *testing.T, row jsonObject, agreed bool) {
	t.Helper()
	most := 0.0
	for _, what := range []string{"hit_rate", "load_seconds", "saved_seconds"} {
		predicted, known := row["predicted_"+what].(float64)
		observed, seen := row["observed_"+what].(float64)
		if !known || !seen {
			t.Fatalf("%s: predicted %v, observed %v", what, row["predicted_"+what], row["observed_"+what])
		}
		most = max(most, math.Abs(predicted/observed-1))
	}
	if (most <= 0.05) != agreed {
		t.Errorf("they differ by %.1f %%: %v", most*100, row)
	}
}

// Ensure that stats --watch --json shows what an epoch should do beside what the last one did: that they agree if it
// reads each sample once, that they differ if not, and that it says why nothing is predicted.
func TestWatchPredictedAndObserved(t *testing.T) {
	const n = 1000
	_, path := newCache(t, shm.Options{Samples: n, Slots: 200, SampleBytes: 100, Policy: shm.PolicyCost})
	c, seconds := newClient(t, path), simulate.Lognormal(n, 0.6, 5)
	w := watch{dir: &dirFlag{}, name: path, with: extras{tracks: map[[16]byte]*advise.Track{}}}
	read := func() jsonObject {
		t.Helper()
		changes, err := w.read(io.Discard)
		if err != nil || len(changes) != 1 {
			t.Fatal(changes, err)
		}
		b, err := changes[0].now.object().MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return decode[jsonObject](t, string(b))
	}
	row := read()
	wantFields(t, row, jsonObject{"predicted_hit_rate": nil, "observed_hit_rate": nil, "predicted_saved_seconds": nil,
		"no_prediction": "cache test has measured no load yet. Run an epoch whose loader stores into it, then ask again"})
	readCostly(t, c, rand.Perm(n)[:n/2], seconds)
	row = read()
	wantFields(t, row, jsonObject{"predicted_hit_rate": 0.2, "observed_hit_rate": nil, "observed_load_seconds": nil,
		"observed_saved_seconds": nil, "observed_evicted": nil, "no_prediction": nil})
	for range 5 {
		readCostly(t, c, rand.Perm(n), seconds)
		read()
	}
	row = read()
	wantAgreed(t, row, true)
	some := rand.Perm(n)
	sorted := slices.Sorted(slices.Values(seconds))
	for k := range n / 2 { // half of all reads are of costly samples
		for seconds[some[k]] < sorted[n*9/10] {
			some[k] = rand.IntN(n)
		}
	}
	readCostly(t, c, some, seconds)
	row = read()
	wantAgreed(t, row, false)

	_, lru := newCache(t, shm.Options{Samples: 10, SampleBytes: 100, Policy: shm.PolicyLRU})
	for _, more := range [][]string{{}, {"--watch", "--count", "1", "--interval", "1ms"}} {
		row := decode[jsonObject](t, ok(t, append([]string{"stats", lru, "--json"}, more...)...))
		rate, why := any(0), any(nil) // nothing is cached
		if len(more) == 0 {
			rate, why = nil, row["no_prediction"]
			contains(t, why.(string), "stocached top")
		}
		wantFields(t, row, jsonObject{"predicted_hit_rate": rate, "predicted_load_seconds": nil, "no_prediction": why})
	}
}

// Ensure that stats without --watch shows what the server of a cache has watched.
func TestStatsOfEpochs(t *testing.T) {
	patient(t)
	const n = 200
	s := evictingServer(t, n, 100, "cost", "path: records")
	path := filepath.Join(s.segments, "pets")
	stats := func() jsonObject {
		t.Helper()
		return decode[jsonObject](t, ok(t, "stats", path, "--sockets", s.sockets, "--json"))
	}
	c := s.dial()
	wantFields(t, stats(), jsonObject{"predicted_hit_rate": nil, "observed_hit_rate": nil, "no_prediction": "cache pets has " +
		"measured no load yet. Run an epoch whose loader stores into it, then ask again"})
	for range 3 {
		wantFetch(t, c, rand.Perm(n))
	}
	row := stats()
	for _, field := range []string{"predicted_hit_rate", "observed_hit_rate", "predicted_load_seconds",
		"observed_load_seconds", "predicted_saved_seconds", "observed_saved_seconds", "observed_evicted"} {
		if v, known := row[field].(float64); !known || v < 0 {
			t.Errorf("%s is %v", field, row[field])
		}
	}
	wantFields(t, row, jsonObject{"no_prediction": nil, "predicted_hit_rate": row["cached_fraction"]})
	contains(t, ok(t, "stats", path, "--all", "--sockets", s.sockets), "\npredicted hits ", "\nobserved loads ", "\nobserved saved ")
}
