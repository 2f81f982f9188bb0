package cli

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that stats shows what happened, by name and directory or by path, as a list, as a table
// and as JSON.
func TestStats(t *testing.T) {
	dir, path := newCache(t, small())
	c := newClient(t, path)
	store(t, c, 0, 1, 2)
	for _, i := range []int{0, 1, 2, 2, 7} {
		if _, _, err := c.View(i); err != nil {
			t.Fatal(err)
		}
	}
	fatal.Gives(c.Set(0, content(0, 100), 0))(t, cache.Exists)
	fatal.If(t, c.CountPassed(3))
	want := jsonObject{"name": "test", "path": path, "samples": 10, "slots": 6, "ready": 3, "cached_fraction": 0.3,
		"slots_fraction": 0.6, "hits": 4, "misses": 1, "hit_rate": 0.8,
		"stored": 3, "exists": 1, "busy": 0, "full": 0, "out": 0, "passed": 3, "ready_bytes": 300,
		"stored_bytes": 300, "clients_live": 1, "clients_ended": 0,
		"arena_next_bytes": nil, "lost": 0, "corrupt": 0, "clears": 0}
	wantFields(t, decode[jsonObject](t, ok(t, "stats", path, "--json")), want)
	wantFields(t, decode[jsonObject](t, ok(t, "stats", "test", "--dir", dir, "--json")), want)
	wantFields(t, decode[[]jsonObject](t, ok(t, "stats", "--dir", dir, "--json"))[0], want)
	contains(t, ok(t, "stats", path, "--all"), "cached        0.3000\n", "hit rate      0.8000\n", "live          1\n")
	if out := ok(t, "stats", path); !regexp.MustCompile(`^name .*\nfilled .*\ncached .*\nhit rate .*\nmemory .*\nlive .*\n$`).MatchString(out) {
		t.Errorf("the numbers that matter:\n%s", out)
	}
	out := lines(ok(t, "stats", "--dir", dir))
	fatal.Equal(t, len(out), 2, "%v", out)
	contains(t, out[0], "HIT RATE", "RACES LOST", "LIVE")
	contains(t, out[1], "0.8000")
	for i := 3; i < 7; i++ { // the last one does not fit
		fatal.Value(c.Set(i, content(i, 100), 0))(t)
	}
	fatal.If(t, c.Close())
	wantFields(t, decode[jsonObject](t, ok(t, "stats", path, "--json")),
		jsonObject{"ready": 6, "full": 1, "clients_live": 0, "clients_ended": 1})
	contains(t, ok(t, "stats", path), "full      1\n") // a trouble
}

// Ensure that stats shows a variable-size cache, which has no slots, with the columns that apply.
func TestStatsVariable(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 10, Variable: true, Limit: 8 << 20})
	c := newClient(t, path)
	for i := range 3 {
		fatal.Value(c.Set(i, content(i, 100*i), 0))(t)
	}
	wantFields(t, decode[jsonObject](t, ok(t, "stats", path, "--json")),
		jsonObject{"slots": nil, "slots_fraction": nil, "ready": 3, "ready_bytes": 300, "arena_next_bytes": 64 + 128 +
			256, "arena_lost_bytes": 0})
	wantFields(t, decode[[]jsonObject](t, ok(t, "ls", "--dir", filepath.Dir(path), "--json"))[0],
		jsonObject{"ready": 3, "slots_fraction": nil, "clients_live": 1})
	wantFields(t, decode[jsonObject](t, ok(t, "inspect", path, "2", "--json")),
		jsonObject{"place": 3, "length": 200, "state": "READY"})
	wantFields(t, decode[jsonObject](t, ok(t, "verify", path, "--json")), jsonObject{"checked": 3, "corrupt": 0})
}

// Ensure that stats, inspect and verify show a variable-size cache that evicts: its policy, what is lost of
// its arena, the slots of a sample, and the place of its cost for each byte.
func TestStatsOfChains(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 10, Variable: true, Limit: 4<<20 + 4096, Policy: shm.PolicyCost, SlotBytes: 64})
	c := newClient(t, path)
	load := func(i, n, ms int) {
		t.Helper()
		fatal.Gives(c.SetLoaded(i, [][]byte{content(i, n)}, 0, time.Duration(ms)*time.Millisecond))(t, cache.Stored, i)
	}
	load(0, 1000, 10) // 16 slots
	load(1, 2000, 10) // 32
	load(2, 10, 5)    // 1, which costs most for each byte
	row := decode[jsonObject](t, ok(t, "stats", path, "--json"))
	wantFields(t, row, jsonObject{"slots": nil, "slots_fraction": nil, "ready": 3, "ready_bytes": 3010, "policy": "cost",
		"evicted": 0, "known_costs": 3, "payload_bytes": 4096, "slot_bytes": 64, "arena_next_bytes": 49 * 64,
		"arena_lost_bytes": nil, "arena_ends_bytes": 49*64 - 3010, "arena_free_bytes": 15 * 64})
	if saved, mean := row["saved_seconds"].(float64), row["first_come_saved_seconds"].(float64); math.Abs(saved-mean) > 1e-9 { // all are cached
		t.Error(saved, mean)
	}
	contains(t, ok(t, "stats", path, "--all"), "slot ends     126 B\n", "free slots    960 B\n", "policy        cost\n")
	for i, rank := range []int{2, 3, 1} {
		wantFields(t, decode[jsonObject](t, ok(t, "inspect", path, strconv.Itoa(i), "--json")), jsonObject{"cost_rank": rank,
			"known_costs": 3})
	}
	wantFields(t, decode[jsonObject](t, ok(t, "inspect", path, "2", "--json")), jsonObject{"place": 48,
		"places": []any{48}, "length": 10, "file_offset": int(c.Segment().PayloadOffset) + 48*64})
	contains(t, ok(t, "inspect", path), "slots           64\n", "slot stride     64\n", "groups ")

	wantFields(t, decode[jsonObject](t, ok(t, "verify", path, "--json")), jsonObject{"checked": 3, "corrupt": 0})
	contains(t, ok(t, "stats", "--dir", filepath.Dir(path)), "EVICTED")
	s := c.Segment().WordLayout().Place(shm.Word(c.Segment().Word(1).Load())) - 1
	c.Segment().SlotSample(s).Store(0) // its chain is broken
	fails(t, exitCorrupt, []string{"1 of 3 samples, such as 1"}, "verify", path)
}

// costly makes a cache with the policy cost: samples 0 to 4 were loaded in 20, 40, 80, 10 and 10 ms. Each
// of the first went for the next, so that the one slot has sample 2.
func costly(t *testing.T) (dir, path string, c *cache.Cache) {
	t.Helper()
	dir, path = newCache(t, shm.Options{Samples: 10, Slots: 1, SampleBytes: 100, Policy: shm.PolicyCost})
	c = newClient(t, path)
	for i, ms := range []int{12, 22, 36, 10, 10} {
		took := time.Duration(ms) * time.Millisecond
		fatal.Value(c.SetLoaded(i, [][]byte{content(i, 100)}, 0, took))(t)
	}
	return dir, path, c
}

// Ensure that stats says what the policy cost saves beside what first-come would save. Of other
// policies it shows the name only.
func TestStatsOfPolicies(t *testing.T) {
	_, path, c := costly(t)
	row := decode[jsonObject](t, ok(t, "stats", path, "--json"))
	wantFields(t, row, jsonObject{"policy": "cost", "ready": 1, "evicted": 2, "replaced": nil, "known_costs": 5})
	saved, mean := row["saved_seconds"].(float64), row["first_come_saved_seconds"].(float64)
	if math.Abs(saved/0.036-1) > 0.2 || math.Abs(mean/(0.09/5)-1) > 0.2 {
		t.Errorf("%g s are saved, and %g s by first-come", saved, mean)
	}
	for i := range 10 { // as many reads as there are samples
		if _, _, err := c.Get(i, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	wantFields(t, decode[jsonObject](t, ok(t, "stats", path, "--json")), jsonObject{"evicted": 2, "replaced": 2})
	contains(t, ok(t, "stats", path, "--all"), "policy        cost\n", "evicted       2\n", "replaced      2\n",
		"known costs   5\n", "saves         ", "random saves  ")
	wantFields(t, decode[jsonObject](t, ok(t, "verify", path, "--json")), jsonObject{"checked": 1, "corrupt": 0})

	o := small()
	o.Policy = shm.PolicyFIFO
	_, path = newCache(t, o)
	c = newClient(t, path)
	store(t, c, 0, 1, 2, 3, 4, 5)
	w := watch{dir: &dirFlag{}, name: path}
	fatal.Value(w.read(io.Discard))(t)
	store(t, c, 6, 7)
	changes, err := w.read(io.Discard)
	if n := changes[0].rate(evicted) * changes[0].seconds; err != nil || math.Abs(n-2) > 1e-6 {
		t.Errorf("%g samples went in the interval, %v", n, err)
	}

	for policy, name := range map[shm.Policy]any{shm.PolicyFIFO: "fifo", shm.PolicyFirstCome: "first-come"} {
		o.Policy = policy
		_, path = newCache(t, o)
		wantFields(t, decode[jsonObject](t, ok(t, "stats", path, "--json")), jsonObject{"policy": name, "evicted": 0,
			"known_costs": nil, "saved_seconds": nil, "first_come_saved_seconds": nil})
	}
	_, path = newCache(t, shm.Options{Samples: 10, Variable: true, Limit: 8 << 20})
	wantFields(t, decode[jsonObject](t, ok(t, "stats", path, "--json")), jsonObject{"policy": "first-come"})
}

// Ensure that commands that inspect a cache change no byte, and take no page and no client record,
// with and without a client.
func TestLookingChangesNothing(t *testing.T) {
	for _, o := range []shm.Options{
		{Samples: 10, Slots: 6, SampleBytes: 100, ClientRecords: 3},
		{Samples: 1000, Variable: true, Limit: 3 << 20, ClientRecords: 3},
		{Samples: 10, Slots: 5, SampleBytes: 1 << 18, Policy: shm.PolicyFirstIndices, UnlinkLast: true,
			ClientRecords: 3},
		{Samples: 10, Slots: 5, SampleBytes: 100, Policy: shm.PolicyCost, ClientRecords: 3},
		{Samples: 1000, Variable: true, Limit: 3 << 20, Policy: shm.PolicyLRU, ClientRecords: 3},
	} {
		dir, path := newCache(t, o)
		look := func() {
			t.Helper()
			before := snapshot(t, path)
			for _, args := range [][]string{
				{"stats", path}, {"stats", path, "--json"}, {"stats", "--dir", dir},
				{"stats", path, "--watch", "--count", "2", "--interval", "1ms"},
				{"inspect", path}, {"inspect", path, "--json"}, {"inspect", path, "3"},
				{"inspect", path, "9", "--json"}, {"verify", path}, {"ls", "--dir", dir},
				{"gc", "--dir", dir}, {"__complete", "stats", "--dir", dir, ""},
			} {
				ok(t, args...)
				fatal.Equal(t, snapshot(t, path), before, "the file after stocached %v", args)
			}
		}
		look()
		seg := fatal.Value(shm.Open(path, shm.OpenOptions{}))(t)
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		fatal.Gives(c.Set(1, make([]byte, max(o.SampleBytes, 1)), 0))(t, cache.Stored)
		look()
		expect.Equal(t, c.Owner(), 1, "owner")
		c.Close()
		seg.Close()
		if o.UnlinkLast {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Error("its last user did not take it along:", err)
			}
			continue
		}
		look()
	}
}

// Ensure that a cache that cannot be read is reported with its code, and does not hide the others.
func TestStatsErrors(t *testing.T) {
	dir, path := newCache(t, small())
	broken := filepath.Join(dir, "broken")
	fatal.If(t, os.WriteFile(broken, make([]byte, 10000), 0o600))
	code, out, stderr := cli(t, "stats", "--dir", dir)
	expect.Equal(t, code, exitCorrupt, "")
	contains(t, out, "test", "0.0000")
	contains(t, stderr, "broken: not a valid segment")
	fails(t, exitCorrupt, []string{"not a valid segment", `it begins with`}, "stats", broken)
	fails(t, exitNotFound, []string{"no such cache", "nothing-here", "stocached ls"}, "stats", "nothing-here",
		"--dir", dir)
	fails(t, exitNotFound, []string{"no such cache"}, "stats", "surely-there-is-no-such-cache")
	fails(t, exitUsage, []string{`".." is not 1 to 100 of`}, "stats", "..", "--dir", dir)
	fails(t, exitUsage, []string{"2 arguments"}, "stats", path, path)
	fails(t, exitUsage, []string{"the name is empty"}, "stats", "")
	fails(t, exitUsage, []string{"--all needs NAME"}, "stats", "--all")
	fails(t, exitUsage, []string{"need --watch"}, "stats", path, "--interval", "2s")
	fails(t, exitUsage, []string{"not above 0"}, "stats", path, "--watch", "--interval", "0s")
	fails(t, exitPermission, []string{"symbolic link"}, "stats", symlink(t, path))
	fails(t, exitPermission, []string{"a directory"}, "stats", dir+"/.")

	// A byte of the header: refused, never repaired. The layout's version comes before the
	// checksum.
	for _, c := range []struct {
		at, code int
	}{{300, exitCorrupt}, {shm.HeaderVersion, exitVersion}} {
		overwrite(t, path, uint64(c.at), 9)
		fails(t, c.code, []string{"create it again"}, "stats", path)
		fails(t, c.code, nil, "inspect", path)
		fails(t, c.code, nil, "verify", path)
	}
}

func symlink(t *testing.T, to string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	fatal.If(t, os.Symlink(to, link))
	return link
}

// Ensure that a file that is truncated during a command is an error and not a crash.
func TestTruncatedWhileLooking(t *testing.T) {
	_, path := newCache(t, small())
	d := dirFlag{}
	seg, err := d.open(path)
	fatal.If(t, err)
	defer seg.Close()
	reader, err := attach(seg)
	fatal.If(t, err)
	fatal.If(t, os.Truncate(path, shm.HeaderBytes))
	err = guard(func() error {
		defer reader.Close()
		_, err := reader.Stats()
		return err
	})
	if exitCode(err) != exitCorrupt {
		t.Fatal(err)
	}
	contains(t, err.Error(), "another process truncated it")
}
