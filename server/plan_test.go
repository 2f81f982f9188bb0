package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// planned is a plan as the server describes it.
type planned struct {
	Name                                    string
	Epoch                                   uint64
	State                                   string
	Total, Consumed, Planned                int
	UnderWay                                int `json:"under_way"`
	Read, Failed                            int
	NoRoom                                  int `json:"no_room"`
	Ahead                                   int
	Samples, Seed, Window, Block, WorldSize uint64
	Ranks                                   []uint64
}

func plansOf(t *testing.T, s *server.Server) (all []planned) {
	t.Helper()
	code, body := ask(t, s, "/v1/caches/pets/plan")
	if err := json.Unmarshal([]byte(body), &all); code != 200 || err != nil {
		t.Fatal(code, body, err)
	}
	return all
}

// planFor makes a plan of JSON, and returns its first state.
func planFor(t *testing.T, s *server.Server, body string) (p planned) {
	t.Helper()
	code, answer := tell(t, s, "POST", "/v1/caches/pets/plan", body)
	if err := json.Unmarshal([]byte(answer), &p); code != 201 || err != nil {
		t.Fatal(code, answer, err)
	}
	return p
}

// orderOf returns what ranks read of an epoch, interleaved.
func orderOf(t *testing.T, o order.Order, epoch, from, ranks uint64, mine ...uint64) (all []int) {
	t.Helper()
	e := fatal.Value(o.Epoch(epoch))(t)
	for p := from; p < o.Samples; p++ {
		if slices.Contains(mine, (p-from)%ranks) {
			all = append(all, int(e.At(p)))
		}
	}
	return all
}

// sequence makes a source record the order of its reads.
func sequence(m *memory) func() []int {
	var mu sync.Mutex
	var all []int
	m.onRead = func(i int) {
		mu.Lock()
		all = append(all, i)
		mu.Unlock()
	}
	return func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// With a plan, a reader that follows its order has only hits, although the server stays within
// `ahead`.
func TestPlan(t *testing.T) {
	const samples, ahead = 2000, 100
	for _, body := range []string{`{"kind": "shuffled", "seed": 7, "epoch": 3, "ahead": 100, "samples": 2000}`,
		`{"kind": "blocks", "seed": 7, "epoch": 3, "ahead": 100, "window": 4, "block": 16}`} {
		m := newMemory(samples, 100)
		read := sequence(m)
		s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
		_, _, c := attachTo(t, s)
		of := order.Order{Samples: samples, Kind: order.Shuffled, Seed: 7}
		if strings.Contains(body, "blocks") {
			of = order.Order{Samples: samples, Kind: order.Blocks, Seed: 7, Window: 4, Block: 16}
		}
		indices := orderOf(t, of, 3, 0, 1, 0)
		if p := planFor(t, s, body); p.Total != samples || p.Ahead != ahead || p.Samples != samples || p.Epoch != 3 {
			t.Fatalf("%+v", p)
		}
		misses, most := 0, 0
		for k, i := range indices {
			if k%50 == 0 { // the reader is slow enough for the server
				next := min(k+ahead, samples)
				fatal.Until(t, "the server is ahead", func() bool {
					state, err := c.State(indices[next-1])
					return err == nil && state == cache.StateReady && len(read()) >= next
				})
			}
			most = max(most, len(read())-k)
			if _, hit, err := c.View(i); err != nil {
				t.Fatal(err)
			} else if !hit {
				misses++
			}
		}
		if misses != 0 || most > ahead {
			t.Errorf("%s: %d misses, at most %d ahead", body, misses, most)
		}
		expect.Slice(t, read(), indices, "%v", body)
		fatal.Until(t, "the plan is over", func() bool { return len(plansOf(t, s)) == 0 })
	}
}

// GET shows the progress of a plan, and DELETE ends it: the server reads nothing more for it.
func TestPlanProgress(t *testing.T) {
	m := newMemory(1000, 100)
	m.fails[orderOf(t, order.Order{Samples: 1000}, 0, 0, 1, 0)[5]] = unix.EIO
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	_, _, c := attachTo(t, s)
	if all := plansOf(t, s); all == nil || len(all) != 0 {
		t.Errorf("%v, want an empty list", all)
	}
	planFor(t, s, `{"kind": "sequential", "ahead": 300, "name": "job"}`)
	waiting := func(planned, consumed int) func() bool {
		return func() bool {
			p := plansOf(t, s)[0]
			return p.State == "waiting" && p.Planned == planned && p.Consumed == consumed && p.UnderWay == 0
		}
	}
	fatal.Until(t, "300 are read", waiting(300, 0))
	if p := plansOf(t, s)[0]; p.Read != 299 || p.Failed != 1 || p.NoRoom != 0 || p.Total != 1000 || p.Name != "job" {
		t.Errorf("%+v", p)
	}
	for i := range 40 {
		c.View(i)
	}
	fatal.Until(t, "it follows the reader", waiting(340, 40))
	planFor(t, s, `{"kind": "sequential", "ahead": 300, "name": "other", "epoch": 1}`)
	if code, body := tell(t, s, "DELETE", "/v1/caches/pets/plan?plan=unknown", ""); code != 404 ||
		!strings.Contains(body, "the cache has: job, other") {
		t.Error(code, body)
	}
	if code, body := tell(t, s, "DELETE", "/v1/caches/pets/plan?plan=job", ""); code != 200 ||
		!strings.Contains(body, `"job"`) {
		t.Error(code, body)
	}
	// It reads sample 5 once more. A read that is under way when a plan ends goes on.
	fatal.Until(t, "the other has read", waiting(300, 0))
	if all := plansOf(t, s); len(all) != 1 || all[0].Name != "other" {
		t.Errorf("%+v", all)
	}
	if code, body := tell(t, s, "DELETE", "/v1/caches/pets/plan", ""); code != 200 ||
		!strings.Contains(body, `"other"`) || len(plansOf(t, s)) != 0 {
		t.Error(code, body)
	}
	before := m.total()
	for i := range 40 {
		c.View(40 + i)
	}
	time.Sleep(100 * time.Millisecond)
	expect.Equal(t, m.total(), before, "reads after the end of all plans")
}

// Fetches come before planned reads.
func TestPlanComesAfterFetches(t *testing.T) {
	m := newMemory(1000, 100)
	read := sequence(m)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	p, number, _ := attachTo(t, s)
	release := m.hold(t, 0)
	planFor(t, s, `{"kind": "sequential"}`)
	fatal.Until(t, "sample 0 is being read, and others wait",
		func() bool { return m.begun(0) == 1 && plansOf(t, s)[0].UnderWay > 100 })
	done := make(chan answer, 1)
	go func() { done <- p.fetch(number, 0, 900, 901, 902) }()
	fatal.Until(t, "the fetch waits too", func() bool { return s.Queued("pets") > plansOf(t, s)[0].UnderWay })
	release()
	if a := <-done; len(a.failures) != 0 || a.refused != nil {
		t.Errorf("%+v", a)
	}
	if got := read(); !slices.Equal(got[:4], []int{0, 900, 901, 902}) {
		t.Errorf("read %v first", got[:4])
	}
}

// The plans of one cache share the reads round robin.
func TestPlansShare(t *testing.T) {
	m := newMemory(4000, 100)
	read := sequence(m)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	release := m.hold(t, 0)
	planFor(t, s, `{"kind": "sequential", "name": "one", "ahead": 400}`)
	fatal.Until(t, "one is at it", func() bool { return m.begun(0) == 1 && plansOf(t, s)[0].UnderWay >= 400 })
	planFor(t, s, `{"kind": "sequential", "name": "two", "position": 2000, "ahead": 400}`)
	fatal.Until(t, "two is too", func() bool { return plansOf(t, s)[1].UnderWay >= 400 })
	release()
	fatal.Until(t, "both are read", func() bool { return len(read()) == 800 })
	for _, n := range []int{100, 200, 400, 600} {
		two := 0
		for _, i := range read()[:n] {
			if i >= 2000 {
				two++
			}
		}
		if two < n/2-2 || two > n/2+2 {
			t.Errorf("%d of the first %d reads were for the second plan", two, n)
		}
	}
}

// A plan of some ranks reads their samples interleaved, from the position of the job.
func TestPlanOfRanks(t *testing.T) {
	m := newMemory(500, 100)
	read := sequence(m)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	want := orderOf(t, order.Order{Samples: 500, Kind: order.Shuffled, Seed: 9}, 2, 37, 4, 1, 3)
	p := planFor(t, s, `{"kind": "shuffled", "seed": 9, "epoch": 2, "position": 37, "world_size": 4, "ranks": [3, 1, 3]}`)
	if p.Total != len(want) || !slices.Equal(p.Ranks, []uint64{1, 3}) {
		t.Errorf("%+v, want %d samples", p, len(want))
	}
	fatal.Until(t, "all is read", func() bool { return len(plansOf(t, s)) == 0 })
	expect.Slice(t, read(), want, "read")
}

// A job sends the plan of its next epoch under the same name: the old plan ends.
func TestPlanReplaced(t *testing.T) {
	m := newMemory(2000, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	release := m.hold(t, 0)
	planFor(t, s, `{"kind": "sequential", "ahead": 100}`)
	fatal.Until(t, "it reads", func() bool { return m.begun(0) == 1 })
	planFor(t, s, `{"kind": "sequential", "epoch": 1, "position": 1000, "ahead": 50}`)
	release()
	fatal.Until(t, "the new one waits",
		func() bool { p := plansOf(t, s); return p[0].State == "waiting" && p[0].Read == 50 })
	if p := plansOf(t, s); len(p) != 1 || p[0].Epoch != 1 || m.begun(1049) != 1 || m.begun(1050) != 0 ||
		m.begun(99) != 0 {
		t.Errorf("%+v", p)
	}
}

// The server does not read samples without a slot, in a full cache or in one that holds only the
// first samples. A plan evicts none.
func TestPlanWithoutRoom(t *testing.T) {
	for _, policy := range []shm.Policy{shm.PolicyFirstCome, shm.PolicyFirstIndices, shm.PolicyCost, shm.PolicyFIFO} {
		m := newMemory(1000, 10000)
		s, _ := start(t, options(t, m, server.CacheOptions{Size: 6 << 20, Policy: policy, Parallel: 1}))
		_, _, c := attachTo(t, s)
		slots := int(c.Segment().Slots)
		if slots < 100 || slots > 500 {
			t.Fatalf("%d slots show nothing", slots)
		}
		planFor(t, s, `{"kind": "sequential", "ahead": 600}`)
		fatal.Until(t, "it has looked at 600",
			func() bool { p := plansOf(t, s)[0]; return p.Read+p.NoRoom == 600 && p.UnderWay == 0 })
		p := plansOf(t, s)[0]
		most := 4 // read before the cache was known to be full
		if policy != shm.PolicyFirstCome {
			most = 0
		}
		over := m.total() - slots
		if p.Read != slots || p.NoRoom != 600-slots || over > most {
			t.Errorf("policy %d: %+v, and %d reads for nothing", policy, p, over)
		}
		stats, err := c.Stats()
		if err != nil || stats.Evicted != 0 || int(stats.Ready) != slots {
			t.Errorf("policy %d: %+v, %v", policy, stats, err)
		}
		if policy != shm.PolicyFirstIndices && p.State != "full" {
			t.Errorf("%+v", p)
		}
		fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
		for i := range 1000 { // a reader's epoch
			c.Get(i, make([]byte, 10000))
		}
		fatal.Until(t, "the plan is over", func() bool { return len(plansOf(t, s)) == 0 })
		if n := m.total() - slots; policy != shm.PolicyFirstIndices && n < 100 {
			t.Errorf("%d reads after a clear", n)
		}
	}
}

// A variable-size cache may have capacity as long as a sample fits. The plan tries one now and
// then, and no more.
func TestPlanOfAFullArena(t *testing.T) {
	for _, policy := range []shm.Policy{shm.PolicyFirstCome, shm.PolicyCost} {
		m := newMemoryOf(3000, 5000, true)
		s, stop := start(t, options(t, m, server.CacheOptions{Size: 6 << 20, Parallel: 1, Policy: policy}))
		planFor(t, s, `{"kind": "sequential", "ahead": 3000}`)
		fatal.Until(t, "the plan is over", func() bool { return len(plansOf(t, s)) == 0 })
		_, _, c := attachTo(t, s)
		stats, err := c.Stats()
		if err != nil || stats.Ready < 100 || stats.Ready > 2000 || stats.Evicted != 0 {
			t.Fatal(policy, stats.Ready, stats.Evicted, err)
		}
		if over := m.total() - int(stats.Ready); over > 10 {
			t.Errorf("%v: %d reads for nothing", policy, over)
		}
		stop()
	}
}

// An invalid plan is refused with the reason.
func TestPlanRefused(t *testing.T) {
	m := newMemory(1000, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	for _, c := range []struct {
		path, body string
		code       int
		text       string
	}{
		{"pets", `{"kind": "shuffled", "samples": 999}`, 400, "the plan has 999 samples, and the cache 1000"},
		{"pets", `{"kind": "shufled"}`, 400, "there are: sequential, shuffled, windows, blocks"},
		{"pets", `{}`, 400, "kind"},
		{"pets", `{"kind": "shuffled", "sead": 1}`, 400, "sead"},
		{"pets", `{"kind": "shuffled"} {}`, 400, "more after it"},
		{"pets", `{"kind": "shuffled"`, 400, "a plan is JSON"},
		{"pets", `{"kind": "blocks", "window": 2}`, 400, "blocks need a size"},
		{"pets", `{"kind": "shuffled", "world_size": 2, "ranks": [2]}`, 400, "rank 2 is not in 0..1"},
		{"pets", `{"kind": "shuffled", "ranks": []}`, 400, "no ranks"},
		{"pets", `{"kind": "shuffled", "world_size": 100000}`, 400, "100000"},
		{"pets", `{"kind": "shuffled", "position": 1001}`, 400, "position 1001 of 1000"},
		{"pets", `{"kind": "shuffled", "ends": "ragged"}`, 400, "uneven, pad, drop"},
		{"pets", `{"kind": "shuffled", "name": "a/b"}`, 400, "name of the plan"},
		{"cats", `{"kind": "shuffled"}`, 404, "it has: pets"},
		{"pets", strings.Repeat(" ", 1<<17), 413, "65536"},
	} {
		if code, body := tell(t, s, "POST", "/v1/caches/"+c.path+"/plan", c.body); code != c.code ||
			!strings.Contains(body, c.text) {
			t.Errorf("%.60s: %d %s; want %d and %q", c.body, code, body, c.code, c.text)
		}
	}
	for _, path := range []string{"/v1/caches/cats/plan", "/v1/caches/cats/plan?plan=x"} {
		if code, body := tell(t, s, "DELETE", path, ""); code != 404 {
			t.Error(code, body)
		}
	}
	if code, body := tell(t, s, "DELETE", "/v1/caches/pets/plan?all=yes", ""); code != 400 ||
		!strings.Contains(body, "only parameter is plan") {
		t.Error(code, body)
	}
	if code, body := ask(t, s, "/v1/caches/cats/plan"); code != 404 {
		t.Error(code, body)
	}
	for k := range 16 {
		planFor(t, s, fmt.Sprintf(`{"kind": "sequential", "ahead": 1, "name": "plan-%d"}`, k))
	}
	if code, body := tell(t, s, "POST", "/v1/caches/pets/plan",
		`{"kind": "sequential", "name": "one-more"}`); code != 409 || !strings.Contains(body, "it has 16 already") {
		t.Error(code, body)
	}
	planFor(t, s, `{"kind": "sequential", "ahead": 1, "name": "plan-3", "epoch": 5}`) // replaces one
	if n := m.total(); n > 3 {
		t.Errorf("%d reads", n)
	}
}

// A plan goes on when the source is opened again, and ends with its cache and with the server.
func TestPlanAndChanges(t *testing.T) {
	m, other := newMemory(3000, 100), newMemory(3000, 100)
	o := options(t, m, server.CacheOptions{Parallel: 1})
	opened := 0
	o = server.WithSource(o, func(context.Context, source.Settings) (source.Source, error) {
		if opened++; opened > 1 {
			return other, nil
		}
		return m, nil
	})
	s, stop := start(t, o)
	_, _, c := attachTo(t, s)
	planFor(t, s, `{"kind": "sequential", "ahead": 100}`)
	fatal.Until(t, "it waits", func() bool { return plansOf(t, s)[0].Read == 100 })
	next := o.Caches[0]
	next.Source = source.Settings{"way": 2}
	reload(t, s, with(o, next)) // the same data
	for i := range 100 {
		c.View(i)
	}
	fatal.Until(t, "it reads from the new source",
		func() bool { return other.total() == 100 && plansOf(t, s)[0].Read == 200 })

	other.fingerprint = "memory-2"
	reload(t, s, o) // replaced by a cold cache
	if all := plansOf(t, s); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	other.latency = time.Millisecond
	planFor(t, s, `{"kind": "sequential"}`)
	fatal.Until(t, "it reads", func() bool { return plansOf(t, s)[0].UnderWay > 100 })
	before := other.total()
	stop() // while reads are under way: a goroutine that is left fails the test
	if n := other.total() - before; n > 200 {
		t.Errorf("%d reads while the server ended", n)
	}
	if err := s.Plan("pets", server.PlanOptions{Kind: "sequential"}); err == nil ||
		!strings.Contains(err.Error(), "ending") {
		t.Error(err)
	}
}

// A plan that no client follows ends by itself.
func TestPlanThatNobodyFollows(t *testing.T) {
	server.SetPlanIdle(t, time.Second)
	m := newMemory(1000, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	_, _, c := attachTo(t, s)
	planFor(t, s, `{"kind": "sequential", "ahead": 10}`)
	for i := range 10 { // a client follows for a while, also on a busy machine
		time.Sleep(150 * time.Millisecond)
		c.View(i)
	}
	expect.Equal(t, len(plansOf(t, s)), 1, "plans, of which one is followed")
	fatal.Until(t, "it has ended", func() bool { return len(plansOf(t, s)) == 0 })
	expect.Equal(t, m.total(), 20, "reads")
}

// A plan does not count as a use: a cache with only a plan is emptied, and the plan ends.
func TestPlanOfAnUnusedCache(t *testing.T) {
	m := newMemory(1000, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{RemoveUnused: time.Second}))
	planFor(t, s, `{"kind": "sequential", "ahead": 300}`)
	fatal.Until(t, "it has read", func() bool { return m.total() == 300 })
	fatal.Until(t, "it is over", func() bool { return len(plansOf(t, s)) == 0 })
	_, _, c := attachTo(t, s)
	if stats, err := c.Stats(); err != nil || stats.Ready != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}
