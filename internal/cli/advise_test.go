package cli

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// advised makes a cache with the policy cost: 20 of 100 samples are cached. Half of the samples take 1
// ms, the others 9 ms.
func advised(t *testing.T) (dir, path string) {
	t.Helper()
	dir, path = newCache(t, shm.Options{Samples: 100, Slots: 20, SampleBytes: 1 << 16, Policy: shm.PolicyCost})
	c := newClient(t, path)
	sample := make([]byte, 1<<16)
	for i := range 100 {
		fatal.Value(c.SetLoaded(i, [][]byte{sample}, 0, time.Duration(1+8*(i%2))*time.Millisecond))(t)
	}
	return dir, path
}

// Ensure that advise shows the curve of a cache as a table and a chart, and says what to do.
func TestAdvise(t *testing.T) {
	dir, path := advised(t)
	code, out, stderr := cli(t, "advise", "test", "--dir", dir, "--workers", "2", "--step", "100ms")
	if code != exitOK || lines(stderr)[0] != stderr {
		t.Fatal(code, stderr)
	}
	contains(t, stderr, "stocached: test: no sample was loaded twice, so all differences between loads count")
	contains(t, out, "test: 100 samples of 64.0 KiB, together 6.2 MiB.\nTheir loads take ",
		"MEMORY     CACHED  FIRST-COME  COST ", "\n0 B        0.0000 ",
		"\n6.2 MiB    1.0000  100ms       100ms  100ms  the training step\n",
		"\nTIME OF AN EPOCH with cost (bar) and with first-come (mark)\n", "\ntoday 1.2 MiB  ██",
		"\nTODAY      1.2 MiB hold 20.0 % of the samples; an epoch takes ", "\npredicted  ",
		"\nTHE REST   5.0 MiB makes an epoch ")
	// One line says what is enough, and the limits follow in the order in which they bind.
	if end := regexp.MustCompile(`\nENOUGH     \d\.\d MiB with cost, \d\.\d MiB with first-come\n` +
		`LIMIT      loading up to that; beyond it the training step, 100ms\n` +
		`TRY        size="\S+ MiB", policy="cost": an epoch takes \S+ in place of \S+\n$`); !end.MatchString(out) {
		t.Error(out)
	}
	for _, line := range lines(out) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	contains(t, ok(t, "advise", path), "\nENOUGH     all 6.2 MiB\nLIMIT      loading up to that\n"+
		"TRY        size=\"6.3 MiB\": an epoch takes 0s in place of ")
	contains(t, ok(t, "advise", path, "--step", "1s"), "\nENOUGH     no memory: loads are not the limit\n"+
		"LIMIT      the training step, 1s\n")
	before := snapshot(t, path)
	expect.Equal(t, ok(t, "advise", "test", "--dir", dir, "--workers", "2", "--step", "100ms"), out, "another result")
	expect.Equal(t, snapshot(t, path), before, "the file after advise")
}

// Ensure that programs get the curve, today's point, the next GiB and the limits.
func TestAdviseJSON(t *testing.T) {
	_, path := advised(t)
	got := decode[jsonObject](t, ok(t, "advise", path, "--json", "--step", "1s"))
	wantFields(t, got, jsonObject{"name": "test", "samples": 100, "sample_bytes": 1 << 16, "known_costs": 100,
		"workers": 1, "policy": "cost", "today_bytes": 20 << 16, "next_bytes": 80 << 16, "next_cost_seconds": 0,
		"enough_cost_bytes": 0,
		"limits":            []any{jsonObject{"name": "the training step", "seconds": 1}}})
	if notes := got["notes"].([]any); len(notes) != 1 {
		t.Error(notes)
	}
	points := got["points"].([]any)
	fatal.Equal(t, len(points), 21, "")
	point := decode[struct{ Points []jsonObject }](t, ok(t, "advise", path, "--json")).Points[10]
	wantFields(t, point, jsonObject{"bytes": 50 << 16, "cached_fraction": 0.5, "limit": "loading"})
}

// Ensure that a recorded run has its own workers and steps, and that other ones can be asked for.
func TestAdviseRun(t *testing.T) {
	code, out, stderr := cli(t, "advise", recording)
	fatal.Equal(t, code, exitOK, "%v", stderr)
	contains(t, stderr, "today is epoch 2, in which 75.0 % of the samples were hits")
	contains(t, out, "run.json: 240 samples of 12.0 KiB", "today 2.1 MiB", "\nWAITING    2.1 % of the time: load 90 %")
	if end := regexp.MustCompile(`\nENOUGH     .*\nLIMIT      loading up to that; beyond it the training step, \S+; next \S+, \S+\n` +
		`TRY        a faster step: an epoch takes \S+ in place of 302ms; the loader keeps up\n` +
		` +num_workers=1; so many are enough, and leave processors to the step\n$`); !end.MatchString(out) {
		t.Error(out)
	}
	text := ok(t, "advise", recording, "--json", "--workers", "16", "--sample-bytes", "1KiB")
	wantFields(t, decode[jsonObject](t, text), jsonObject{"workers": 16, "sample_bytes": 1024, "policy": nil, "enough_cost_bytes": 0})
}

// Ensure that a cache is advised with the pace of a run that read it, within the memory at hand. trace and advise say the
// same of one file.
func TestAdviseWithARun(t *testing.T) {
	_, path := advised(t)
	got := decode[jsonObject](t, ok(t, "advise", path, "--run", recording, "--size", "2MiB", "--json"))
	wantFields(t, got, jsonObject{"name": "test", "samples": 100, "workers": 3, "policy": "cost"})
	traced := decode[struct{ Stages []jsonObject }](t, ok(t, "trace", recording, "--json"))
	waits := map[string]float64{}
	for _, w := range got["waits"].([]any) {
		waits[w.(jsonObject)["name"].(string)] = w.(jsonObject)["seconds"].(float64)
	}
	for _, stage := range traced.Stages {
		if want := stage["wait_seconds"].(float64); math.Abs(waits[stage["stage"].(string)]-want) > 1e-9 {
			t.Errorf("%v: trace says %g s, advise %g", stage["stage"], want, waits[stage["stage"].(string)])
		}
	}
	for _, size := range []string{"2MiB", "4MiB"} {
		out := decode[jsonObject](t, ok(t, "advise", path, "--size", size, "--json"))
		tried := out["tries"].([]any)[0].(jsonObject)
		wantFields(t, tried, jsonObject{"kind": "cache", "setting": fmt.Sprintf(`size="%c MiB", policy="cost"`, size[0])})
	}
	fails(t, exitNotFound, []string{"none.json"}, "advise", path, "--run", "none.json")
}

// Ensure that a configuration stands for the caches that it names, and that a cache that cannot be read
// does not hide the others.
func TestAdviseConfiguration(t *testing.T) {
	dir, _ := advised(t)
	file := filepath.Join(t.TempDir(), "serve.yaml")
	write := func(caches ...string) {
		t.Helper()
		text := "caches:\n"
		for _, c := range caches {
			text += "  - {source: {kind: dir, path: .}, " + c + "}\n"
		}
		fatal.If(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(fmt.Sprintf("name: test, dir: %q, parallel: 4", dir))
	rows := decode[[]jsonObject](t, ok(t, "advise", file, "--json"))
	wantFields(t, rows[0], jsonObject{"name": "test", "workers": 4})

	write(fmt.Sprintf("name: test, dir: %q", dir), fmt.Sprintf("name: gone, dir: %q", dir), "name: other, unnamed: true")
	code, out, stderr := cli(t, "advise", file)
	expect.Equal(t, code, exitNotFound, "")
	contains(t, out, "test: 100 samples")
	contains(t, stderr, "no such cache", "gone", "other of the configuration has no name")
	_, second := advised(t)
	fatal.If(t, os.Rename(second, filepath.Join(filepath.Dir(second), "again")))
	write(fmt.Sprintf("name: test, dir: %q", dir), fmt.Sprintf("name: again, dir: %q", filepath.Dir(second)))
	if rows = decode[[]jsonObject](t, ok(t, "advise", file, "--json")); len(rows) != 2 {
		t.Error(rows)
	}
}

// Ensure that what says nothing is an error that says the next step.
func TestAdviseErrors(t *testing.T) {
	dir, path := newCache(t, small())
	fails(t, exitFailed, []string{"cache test has measured no load yet", "Run an epoch", `trace="run.json"`, "stocached advise run.json"}, "advise", path)
	_, costs := newCache(t, shm.Options{Samples: 10, SampleBytes: 10, Policy: shm.PolicyCost})
	fails(t, exitFailed, []string{"measured no load yet", "Run an epoch"}, "advise", costs)
	fails(t, exitNotFound, []string{"no such cache", "stocached ls"}, "advise", "nothing-here", "--dir", dir)
	fails(t, exitNotFound, []string{"no such file"}, "advise", "nothing-here.json")
	fails(t, exitNotFound, []string{"no such file"}, "advise", "nothing-here.yaml")
	file := filepath.Join(t.TempDir(), "garbage")
	for content, want := range map[string]string{"": "it is empty", "garbage": "it is not JSON", "{}": "not a timeline"} {
		for _, name := range []string{file, file + ".json"} {
			fatal.If(t, os.WriteFile(name, []byte(content), 0o600))
			fails(t, exitCorrupt, []string{name, want}, "advise", name)
		}
	}
	fatal.If(t, os.WriteFile(file+".yaml", []byte("garbage"), 0o600))
	fails(t, exitUsage, []string{"invalid configuration", file + ".yaml"}, "advise", file+".yaml")
	fails(t, exitUsage, []string{"0 arguments"}, "advise")
	fails(t, exitUsage, []string{"--workers is 0"}, "advise", path, "--workers", "0")
	fails(t, exitUsage, []string{"--workers is -1"}, "advise", path, "--workers", "-1")
	fails(t, exitUsage, []string{"--step is -1s"}, "advise", path, "--step", "-1s")
}
