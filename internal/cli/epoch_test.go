package cli

import (
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that stats --watch --json shows what an epoch should do beside what the last one did, and says why nothing is
// predicted.
func TestWatchPredictedAndObserved(t *testing.T) {
	const n = 200
	_, path := newCache(t, shm.Options{Samples: n, Slots: 40, SampleBytes: 100, Policy: shm.PolicyCost})
	c := newClient(t, path)
	w := watch{dir: &dirFlag{}, name: path, with: extras{tracks: map[[16]byte]*advise.Track{}}}
	read := func(samples []int) jsonObject {
		t.Helper()
		dst := make([]byte, 100)
		for _, i := range samples { // as a training loop does
			if _, hit, err := c.Get(i, dst); err != nil {
				t.Fatal(err)
			} else if hit {
				continue
			}
			fatal.Value(c.SetLoaded(i, [][]byte{content(i, 100)}, 0, time.Duration(1+i%9)*time.Millisecond))(t)
		}
		changes, err := w.read(io.Discard)
		if err != nil || len(changes) != 1 {
			t.Fatal(changes, err)
		}
		b := fatal.Value(changes[0].now.object().MarshalJSON())(t)
		return decode[jsonObject](t, string(b))
	}
	wantFields(t, read(nil), jsonObject{"predicted_hit_rate": nil, "observed_hit_rate": nil, "predicted_saved_seconds": nil,
		"no_prediction": "cache test has measured no load yet. Run an epoch whose loader stores into it, then ask again"})
	wantFields(t, read(rand.Perm(n)[:n/2]), jsonObject{"predicted_hit_rate": 0.2, "observed_hit_rate": nil,
		"observed_load_seconds": nil, "observed_saved_seconds": nil, "observed_evicted": nil, "no_prediction": nil})
	for range 3 {
		read(rand.Perm(n))
	}
	row := read(rand.Perm(n))
	for _, what := range []string{"hit_rate", "load_seconds", "saved_seconds"} {
		predicted, known := row["predicted_"+what].(float64)
		observed, seen := row["observed_"+what].(float64)
		if !known || !seen || predicted <= 0 || observed <= 0 || observed > 2*predicted || predicted > 2*observed {
			t.Errorf("%s: predicted %v, observed %v", what, row["predicted_"+what], row["observed_"+what])
		}
	}

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
