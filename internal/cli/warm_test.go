package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// warmRecords writes n records of 100 bytes, and warmCache is a cache of them. source, more:
// further keys of the two.
func warmRecords(t *testing.T, n int) func(folder string) {
	return func(folder string) {
		var all bytes.Buffer
		for i := range n {
			all.Write(content(i, 100))
		}
		fatal.If(t, os.WriteFile(filepath.Join(folder, "records.bin"), all.Bytes(), 0o600))
	}
}

func warmCache(name, source, more string) string {
	return fmt.Sprintf("name: %s, source: {kind: raw, path: records.bin, sample_bytes: 100%s}%s", name, source,
		more)
}

// wantRecordsIn compares the cached samples with the records, and returns their number.
func wantRecordsIn(t *testing.T, c *cache.Cache) (there int) {
	t.Helper()
	for i, data := range c.Ready() {
		there++
		if !bytes.Equal(data, content(i, 100)) {
			t.Errorf("sample %d is wrong", i)
		}
	}
	return there
}

// limited returns the size of a cache that holds some of n records of 100 bytes.
func limited(t *testing.T, n, slots uint64) string {
	t.Helper()
	g := fatal.Value(shm.NewGeometry(0, shm.PolicyFirstCome, n, slots, 128, shm.DefaultClientRecords, 0))(t)
	return fmt.Sprintf(", size: %d", g.SegmentBytes)
}

// Ensure that warm fills a cache with the missing samples, reports its work, and has nothing to do
// the second time.
func TestWarm(t *testing.T) {
	const n = 2000
	d := newServedCaches(t, warmRecords(t, n), warmCache("pets", "", ""))
	c := d.attach("pets")
	store(t, c, 0, 7, 1999)
	got := d.warm("pets", "--parallel", "3")
	wantFields(t, got, jsonObject{"name": "pets", "samples": n, "slots": n, "ready": n, "cached_fraction": 1,
		"full": true, "kept_samples": 3, "filled_samples": n - 3, "failed_samples": 0,
		"bytes": (n - 3) * 100})
	expect.Equal(t, wantRecordsIn(t, c), n, "records")
	if stats, err := c.Stats(); err != nil || stats.Hits+stats.Misses != 0 {
		t.Errorf("filling ahead was counted: %d hits, %d misses, %v", stats.Hits, stats.Misses, err)
	}
	expect.Equal(t, d.metric("stocached_source_reads_total", `cache="pets"`), n-3, "reads")
	again := ok(t, d.args("warm", "pets")...)
	contains(t, again, "pets holds every sample\n", "kept     2,000\n", "new      0\n")
	expect.Equal(t, d.metric("stocached_source_reads_total", `cache="pets"`), n-3, "reads after the second time")
}

// Ensure that a cache that cannot hold all samples is filled to its last slot, without unnecessary
// reads, and that a full one that evicts keeps its samples.
func TestWarmUntilFull(t *testing.T) {
	const n = 2000
	half := limited(t, n, 700)
	d := newServedCaches(t, warmRecords(t, n), warmCache("come", "", half),
		warmCache("first", "", half+", policy: first-indices"), warmCache("cost", "", half+", policy: cost"),
		warmCache("fifo", "", half+", policy: fifo"))
	for _, name := range []string{"come", "first", "cost", "fifo"} {
		got := d.warm(name)
		c := d.attach(name)
		slots := got["slots"].(float64)
		if slots < 600 || slots > 1500 {
			t.Fatalf("%v slots", slots)
		}
		wantFields(t, got, jsonObject{"ready": slots, "full": true, "filled_samples": slots, "failed_samples": 0})
		expect.Equal(t, wantRecordsIn(t, c), int(slots), "records")
		expect.Gives(c.State(int(slots)-1))(t, cache.StateReady, "it was not filled in order:")
		expect.Equal(t, d.metric("stocached_source_reads_total", fmt.Sprintf("cache=%q", name)), slots, "reads")
		contains(t, ok(t, d.args("warm", name)...),
			fmt.Sprintf("%s is full: %v of 2,000 samples fit\n", name, table.Count(slots)))
		if stats, err := c.Stats(); err != nil || stats.Evicted != 0 {
			t.Errorf("%s: %+v, %v", name, stats, err)
		}
	}
}

// Ensure that an arena is filled until a sample does not fit, and that this is not a failure.
func TestWarmArena(t *testing.T) {
	t.Parallel()
	const n = 600
	tree := func(folder string) {
		fatal.If(t, os.Mkdir(filepath.Join(folder, "files"), 0o700))
		for i := range n {
			if err := os.WriteFile(filepath.Join(folder, "files", fmt.Sprintf("%03d", i)),
				bytes.Repeat([]byte{byte(i)}, 10000+100*(i%50)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	caches := []string{"name: all, source: {kind: dir, path: files}"}
	parts := []string{"first-come", "cost", "planned"}
	for _, policy := range parts {
		caches = append(caches, fmt.Sprintf("name: %s, size: 7MiB, source: {kind: dir, path: files}, policy: %[1]s", policy))
	}
	d := newServedCaches(t, tree, caches...)
	wantFields(t, d.warm("all"), jsonObject{"slots": nil, "ready": n, "full": false, "failed_samples": 0,
		"filled_samples": n})
	for _, part := range parts {
		got := d.warm(part, "--parallel", "2")
		ready := got["ready"].(float64)
		wantFields(t, got, jsonObject{"full": true, "failed_samples": 0, "filled_samples": ready})
		c := d.attach(part)
		stats := fatal.Value(c.Stats())(t)
		if left := c.Segment().PayloadBytes - stats.ArenaNextBytes; ready < 200 || ready >= n || left > 16000 || stats.Evicted != 0 {
			t.Errorf("%v samples, %d bytes of the arena left", ready, left)
		}
		// reads under way when it became full
		if read := d.metric("stocached_source_reads_total", fmt.Sprintf("cache=%q", part)); read > ready+300 {
			t.Errorf("%v reads for %v samples", read, ready)
		}
		for i, data := range c.Ready() {
			if len(data) != 10000+100*(i%50) || data[0] != byte(i) {
				t.Errorf("sample %d is wrong", i)
			}
		}
		contains(t, ok(t, d.args("warm", part)...), part+" is full: ")
	}
}

// Ensure that unreadable samples are counted and named, do not stop the others, and set the exit
// status.
func TestWarmWithBadSamples(t *testing.T) {
	const n = 100
	tree := func(folder string) {
		for i := range n {
			name := filepath.Join(folder, "files", fmt.Sprintf("%03d", i))
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700),
				os.WriteFile(name, content(i, 100), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := newServedCaches(t, tree, "name: pets, source: {kind: dir, path: files}")
	file := func(i int) string { return filepath.Join(d.folder, "files", fmt.Sprintf("%03d", i)) }
	fatal.If(t, errors.Join(os.Remove(file(7)), os.Truncate(file(30), 5)))
	code, out, stderr := cli(t, d.args("warm", "pets")...)
	expect.Equal(t, code, exitFailed, "exit")
	contains(t, out, "pets holds 98 of 100 samples\n", "failed   2\n", "new      98\n")
	contains(t, stderr, "stocached: 2 samples could not be filled\n", "  READ: sample 7 (", "files/007",
		"no such file", "  CHANGED: sample 30 (", "files/030", "stocached reload")
	if strings.Index(stderr, "sample 7 ") > strings.Index(stderr, "sample 30 ") {
		t.Error("out of order:", stderr)
	}
	for i := 40; i < 60; i++ {
		if err := os.Truncate(file(i), 7); err != nil { // a removed file may still be open
			t.Fatal(err)
		}
	}
	c := d.attach("pets")
	fatal.Gives(c.Clear(context.Background()))(t, cache.Stored)
	code, out, stderr = cli(t, d.args("warm", "pets", "--json")...)
	got := decode[jsonObject](t, out)
	if failures := got["failures"].([]any); code != exitFailed || stderr != "" || len(failures) != 22 ||
		failures[0].(jsonObject)["index"] != 7.0 || failures[0].(jsonObject)["code"] != "READ" ||
		!strings.Contains(failures[21].(jsonObject)["error"].(string), "files/059") {
		t.Errorf("exit %d, %q, %v", code, stderr, failures)
	}
	wantFields(t, got, jsonObject{"ready": 78, "failed_samples": 22, "full": false})
	_, _, stderr = cli(t, d.args("warm", "pets")...)
	contains(t, stderr, "  and 12 more (--json lists the first 1000)\n")
	expect.Equal(t, wantRecordsIn(t, c), 78, "records")
}

// slow is a source of 333 samples a second.
const slow = ", limits: {latency: 3ms}"

// midway waits until a part of a cache is filled.
func midway(t *testing.T, c *cache.Cache, least, samples uint64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		stats, err := c.Stats()
		switch {
		case err != nil || time.Now().After(deadline):
			t.Fatalf("%d are filled, %v", stats.Ready, err)
		case stats.Ready == samples:
			t.Fatal("all is filled already")
		case stats.Ready >= least:
			return
		}
	}
}

// running is a warm of the cache pets, and what it has printed when it has ended.
type running struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

// startWarm starts a warm as a process.
func startWarm(t *testing.T, d *served, flags ...string) *running {
	t.Helper()
	r := &running{Cmd: program(d.args(append([]string{"warm", "pets"}, flags...)...)...)}
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	fatal.If(t, r.Start())
	t.Cleanup(func() { r.Process.Kill() })
	return r
}

// wantFailed waits for the end, which must have an exit code and no output.
func (r *running) wantFailed(t *testing.T, code int) {
	t.Helper()
	defer time.AfterFunc(30*time.Second, func() { r.Process.Kill() }).Stop()
	r.Wait()
	if got := r.ProcessState.ExitCode(); got != code || r.stdout.Len() != 0 {
		t.Errorf("exit %d, want %d, %q", got, code, r.stdout.String())
	}
}

// Ensure that warm fails with a message if its server ends or is killed in the middle. The cache
// keeps its samples, and the same command goes on from there.
func TestWarmServerKilled(t *testing.T) {
	t.Parallel()
	const n = 500
	d := newServedCaches(t, warmRecords(t, n), warmCache("pets", slow, ", parallel: 4"))
	kept := uint64(0)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		c := d.attach("pets")
		p := startWarm(t, d, "--timeout", "2s")
		midway(t, c, kept+50, n)
		d.end(signal)
		p.wantFailed(t, exitNoServer)
		stats, err := c.Stats()
		if err != nil || stats.Ready < kept+50 || stats.Ready == n {
			t.Fatalf("%d samples after %v, %v", stats.Ready, signal, err)
		}
		kept = stats.Ready
		contains(t, p.stderr.String(), "stocached: no server",
			fmt.Sprintf("%v of 500 samples are in the cache and stay there, and the same command goes on from there",
				table.Count(kept)),
			"stocached serve -c config.yaml")
		expect.Equal(t, wantRecordsIn(t, c), int(kept), "records")
		fails(t, exitNoServer, []string{"no server answers on", "stocached serve -c config.yaml"},
			d.args("warm", "pets", "--timeout", "10ms")...)
		d.start()
	}
	wantFields(t, d.warm("pets"), jsonObject{"ready": n, "kept_samples": kept, "filled_samples": n - kept,
		"failed_samples": 0})
	expect.Equal(t, wantRecordsIn(t, d.attach("pets")), n, "records")
}

// Ensure that warm ends with a message if its server stops in the middle, that it waits for a slow
// one, and that it goes on from there.
func TestWarmServerStops(t *testing.T) {
	t.Parallel()
	const n = 500
	d := newServedCaches(t, warmRecords(t, n), warmCache("pets", ", limits: {latency: 10ms}", ""))
	c := d.attach("pets")
	p := startWarm(t, d, "--timeout", "1500ms", "--parallel", "1")
	midway(t, c, 50, n)
	pause(t, d.process)
	p.wantFailed(t, exitNoServer)
	contains(t, p.stderr.String(), "stocached: no server", "did not answer within 1.5s",
		"it may be stopped or overloaded", "of 500 samples are in the cache and stay there")
	fatal.If(t, d.process.Process.Signal(syscall.SIGCONT))
	// A batch takes 2.3 s.
	wantFields(t, d.warm("pets", "--timeout", "1500ms", "--parallel", "1"), jsonObject{"ready": n, "failed_samples": 0})
	expect.Equal(t, wantRecordsIn(t, c), n, "records")
}

// Ensure that warm goes on with the next server if that starts soon.
func TestWarmServerBack(t *testing.T) {
	t.Parallel()
	const n = 500
	d := newServedCaches(t, warmRecords(t, n), warmCache("pets", slow, ", parallel: 4"))
	c := d.attach("pets")
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		fatal.Gives(c.Clear(context.Background()))(t, cache.Stored)
		p := startWarm(t, d, "--timeout", "20s", "--json")
		midway(t, c, 100, n)
		d.end(signal)
		d.start()
		if err := p.Wait(); err != nil {
			t.Fatalf("after %v: %v\n%s", signal, err, p.stderr.String())
		}
		wantFields(t, decode[jsonObject](t, p.stdout.String()),
			jsonObject{"ready": n, "kept_samples": 0, "filled_samples": n, "failed_samples": 0})
		expect.Equal(t, wantRecordsIn(t, c), n, "records")
	}
}

// Ensure that Ctrl-C ends warm at once, that the server stops reading, and that the filled samples
// stay.
func TestWarmInterrupted(t *testing.T) {
	t.Parallel()
	const n = 500
	d := newServedCaches(t, warmRecords(t, n), warmCache("pets", slow, ""))
	c := d.attach("pets")
	p := startWarm(t, d, "--json")
	midway(t, c, 100, n)
	fatal.If(t, p.Process.Signal(os.Interrupt))
	p.wantFailed(t, exitFailed)
	var done, of int
	if _, err := fmt.Sscanf(strings.ReplaceAll(p.stderr.String(), ",", ""),
		"stocached: interrupted: %d of %d samples are in the cache", &done, &of); err != nil || done < 100 ||
		done >= n || of != n {
		t.Errorf("%q: %v", p.stderr.String(), err)
	}
	fatal.Until(t, "the server stops reading", func() bool { return d.metric("stocached_queue_depth", `cache="pets"`) == 0 })
	if there := wantRecordsIn(t, c); there < done || there > done+2*32 {
		t.Errorf("%d are there, it said %d", there, done)
	}
	wantFields(t, d.warm("pets"), jsonObject{"ready": n, "failed_samples": 0})
}

// Ensure that other clients may fill during a warm, and that warm reports a sample that another client
// never finishes.
func TestWarmBesideOthers(t *testing.T) {
	t.Parallel()
	const n = 3000
	d := newServedCaches(t, warmRecords(t, n), warmCache("pets", "", ""))
	c := d.attach("pets")
	claim, r, err := c.Claim(2500, 100, 0)
	if err != nil || r != cache.Stored {
		t.Fatal(r, err)
	}
	var others sync.WaitGroup
	others.Go(func() {
		for i := n - 1; i >= 0; i-- {
			if r, err := c.Set(i, content(i, 100), 0); err != nil || r != cache.Stored && r != cache.Exists &&
				r != cache.Busy {
				t.Error(i, r, err)
			}
		}
	})
	code, out, stderr := cli(t, d.args("warm", "pets")...)
	others.Wait()
	expect.Equal(t, code, exitFailed, "exit")
	contains(t, out, "failed   1\n")
	contains(t, stderr, "1 sample could not be filled",
		"NO_SLOT: sample 2500: another client is filling it, for longer than 1s")
	fatal.If(t, claim.Abort())
	wantFields(t, d.warm("pets"), jsonObject{"ready": n, "filled_samples": 1})
	expect.Equal(t, wantRecordsIn(t, c), n, "records")
}

func TestWarmRefuses(t *testing.T) {
	d := newServedCaches(t, warmRecords(t, 20), warmCache("pets", "", ""))
	fails(t, exitNotFound, []string{`no such cache: this server has no cache "cats"; it has: pets`},
		d.args("warm", "cats")...)
	fails(t, exitUsage, []string{"is not a name of a server's cache", "--help says more"},
		d.args("warm", filepath.Join(d.segments, "pets"))...)
	fails(t, exitUsage, []string{"0 arguments, expected the name of a cache"}, d.args("warm")...)
	fails(t, exitUsage, []string{"2 arguments"}, d.args("warm", "pets", "cats")...)
	for _, n := range []string{"0", "65", "-1"} {
		fails(t, exitUsage, []string{"--parallel " + n + " is not in 1..64"},
			d.args("warm", "pets", "--parallel", n)...)
	}
	fails(t, exitUsage, []string{"--timeout 0s is not above 0"}, d.args("warm", "pets", "--timeout", "0s")...)
	fails(t, exitNoServer, []string{"no server answers on /nowhere/data.sock", "stocached serve -c config.yaml"},
		"warm", "pets", "--sockets", "/nowhere", "--timeout", "10ms")
	pause(t, d.process)
	fails(t, exitNoServer, []string{"did not answer within 100ms"}, d.args("warm", "pets", "--timeout", "100ms")...)
}

// Ensure that warm fails with a message if a cache has free slots but no memory for them, and goes
// on when there is some.
func TestWarmWithoutMemory(t *testing.T) {
	const n = 60
	big := func(folder string) {
		var all bytes.Buffer
		for i := range n {
			all.Write(content(i, 200<<10))
		}
		fatal.If(t, os.WriteFile(filepath.Join(folder, "records.bin"), all.Bytes(), 0o600))
	}
	small := tmpfs.Mount(t, t.TempDir(), "size=24m")
	d := newFolder(t)
	d.segments = small
	big(d.folder)
	d.configure(fmt.Sprintf("caches: [{name: pets, dir: %s, source: {kind: raw, path: records.bin, sample_bytes: %d}}]\n", small,
		200<<10))
	d.start()
	t.Cleanup(d.kill) // before its mapped memory is removed
	ballast := filepath.Join(small, "ballast")
	fatal.If(t, os.WriteFile(ballast, make([]byte, 18<<20), 0o600))
	fails(t, exitMemory, []string{fmt.Sprintf(" of %d samples are in pets and %d would fit", n, n), "has no memory for more",
		"stocached gc"}, d.args("warm", "pets")...)
	c := d.attach("pets")
	stats, err := c.Stats()
	if err != nil || stats.Ready == 0 || stats.Ready > 35 {
		t.Errorf("%d are filled, %v", stats.Ready, err)
	}
	if reads := d.metric("stocached_source_reads_total", `cache="pets"`); reads > float64(stats.Ready)+64 {
		t.Errorf("%v reads of the source for %d samples", reads, stats.Ready)
	}
	_, out, complaint := cli(t, d.args("health")...) // warm has said that it has the numbers
	contains(t, out, "not everything is well")
	contains(t, complaint, "cache pets: memory is short: first ", "): the tmpfs of "+small)
	expect.Equal(t, d.metric("stocached_memory_short", `cache="pets"`), 1, "memory_short")
	before := d.metric("stocached_source_reads_total", `cache="pets"`)
	fails(t, exitMemory, nil, d.args("warm", "pets")...)
	expect.Equal(t, d.metric("stocached_source_reads_total", `cache="pets"`), before, "reads, although memory is short")
	fatal.If(t, os.Remove(ballast))
	wantFields(t, d.warm("pets"), jsonObject{"ready": n, "kept_samples": stats.Ready, "failed_samples": 0})
}
