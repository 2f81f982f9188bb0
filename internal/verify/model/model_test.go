package model

import (
	"maps"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// limit bounds the states of one configuration, so that a step whose histories differ forever does
// not fill the memory.
const limit = 4_000_000

// The documented protocol holds in every reachable state of every configuration. Together the
// configurations pass every fault point of docs/spec/{protocol,eviction}.md and make every step of the model.
func TestProtocol(t *testing.T) {
	var mu sync.Mutex // protects passed and made
	passed := map[string]bool{}
	var made [steps]bool
	all := Configs()
	if !testing.Short() {
		all = append(LargeConfigs(), all...)
	}
	limit := limit
	if os.Getenv("MODEL_DEEP") != "" {
		all, limit = append(DeepConfigs(), all...), 20*limit
	}
	t.Run("configurations", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				r := exploreDocumented(c, limit)
				t.Logf("%s: %s, %.1f s", c.Name, r, time.Since(start).Seconds())
				if r.Violation != "" {
					t.Fail()
				}
				if r.Rests == 0 {
					t.Error("no state is at rest: nothing ever ends in this configuration")
				}
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(passed, r.Points)
				for k, did := range r.Steps {
					made[k] = made[k] || did
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	made[finished], made[drainTimeout] = true, true // not a step; a choice at drainEntry
	for k, did := range made {
		if !did {
			t.Errorf("no configuration makes step %d", k)
		}
	}
	compareSets(t, "docs/spec", documented(t), "the configurations", passed)
}

// documentedReports has the functions that exploreDocumented has made, by configuration.
var documentedReports sync.Map

// exploreDocumented explores a configuration of the protocol as documented, once for all tests.
func exploreDocumented(c Config, limit int) *Report {
	explore, _ := documentedReports.LoadOrStore(c.Name, sync.OnceValue(func() *Report { return c.Explore(limit) }))
	return explore.(func() *Report)()
}

// Every mutation of the protocol is found in its configuration. The log has the shortest schedule.
func TestMutations(t *testing.T) {
	for _, m := range Mutants {
		if m.In == "" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			c := configNamed(t, m.In)
			c.Broken = m.Mutation
			r := c.Explore(limit)
			t.Logf("%s. Found in %s: %s", m.Text, m.In, r)
			if r.Violation == "" {
				t.Errorf("nothing wrong is found when %s: the model or the claim is too weak", m.Text)
			}
		})
	}
}

// The mutations that the table calls redundant do no harm in any configuration. Otherwise the
// reason in the table is wrong. Where no step asks for the mutation, TestProtocol has explored the same states. The
// largest configurations are explored only when MODEL_DEEP is set.
func TestRedundant(t *testing.T) {
	for _, m := range Mutants {
		if m.In != "" {
			continue
		}
		for _, c := range Configs() {
			t.Run(m.Name+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				whole := exploreDocumented(c, limit)
				if !whole.Asked[m.Mutation] || whole.States > 100_000 && os.Getenv("MODEL_DEEP") == "" {
					return
				}
				c.Broken = m.Mutation
				if r := c.Explore(limit); r.Violation != "" {
					t.Errorf("%s, which is thought harmless because %s. Found in %s: %s", m.Text, m.Redundant, c.Name,
						r)
				}
			})
		}
	}
}

func configNamed(t *testing.T, name string) Config {
	t.Helper()
	for _, c := range Configs() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no configuration %q", name)
	return Config{}
}

// The replayed schedules pass every fault point, and clients die at each of them.
func TestSchedulesCover(t *testing.T) {
	documented := documented(t)
	replayed, died := map[string]bool{}, map[string]bool{}
	for _, s := range Schedules() {
		run := fatal.Value(NewRun(s.World, 0))(t)
		at := map[int]string{}
		for _, text := range s.Moves {
			m := fatal.Value(ParseMove(text))(t)
			expect.Equal(t, m.String(), text, "a move that was read, as text")
			if m.Dies {
				for thread, ref := range run.y.threads {
					if int(ref.client) == m.Thread && at[thread] != "" {
						died[at[thread]] = true
					}
				}
				continue
			}
			if at[m.Thread] = m.Point; m.Point != "" {
				replayed[m.Point] = true
			}
		}
	}
	compareSets(t, "docs/spec", documented, "the schedules", replayed)
	compareSets(t, "docs/spec", documented, "the deaths in the schedules", died)
}

// documented has the fault points of the protocol.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	points := pointsOf(t, "../../../docs/spec/protocol.md")
	maps.Copy(points, pointsOf(t, "../../../docs/spec/eviction.md"))
	return points
}

// pointsOf finds the names of fault points in a document.
func pointsOf(t *testing.T, path string) map[string]bool {
	t.Helper()
	text := fatal.Value(os.ReadFile(path))(t)
	points := map[string]bool{}
	for _, m := range regexp.MustCompile("`((?:register|reclaim|claim|evict|slot|extent|write|publish|abort|clear)\\.[a-z]+)`").FindAllStringSubmatch(string(text), -1) {
		points[m[1]] = true
	}
	return points
}

func compareSets(t *testing.T, a string, in map[string]bool, b string, also map[string]bool) {
	t.Helper()
	for p := range in {
		if !also[p] {
			t.Errorf("%s: in %s, not in %s", p, a, b)
		}
	}
	for p := range also {
		if !in[p] {
			t.Errorf("%s: in %s, not in %s", p, b, a)
		}
	}
}
