package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// Ensure that stats --watch shows the activity of a process that uses the cache, one line an
// interval, and that the process does not see it.
func TestWatchPipe(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 1000, SampleBytes: 100})
	child := start(t, "use", path)
	out := lines(ok(t, "stats", path, "--watch", "--count", "3", "--interval", "150ms"))
	fatal.Equal(t, len(out), 4, "%v", out)
	if f := strings.Join(strings.Fields(out[0]),
		" "); f != "TIME HIT RATE HITS/S MISSES/S SETS/S EVICTED/S CACHED MEMORY LIVE NAME" {
		t.Error(f)
	}
	for _, line := range out[1:] {
		f := strings.Fields(line)
		if len(f) != 11 || f[4] != "0.0" || f[5] != "0.0" || f[6] != "0.5000" || f[9] != "1" || f[10] != "test" ||
			len(line) != len(out[0]) {
			t.Errorf("%d: %q", len(f), line)
		}
	}
	rows := watched(t, ok(t, "stats", path, "--watch", "--count", "3", "--interval", "150ms", "--json"))
	fatal.Equal(t, len(rows), 3, "%v", rows)
	for _, row := range rows {
		wantFields(t, row, jsonObject{"name": "test", "ready": 500, "clients_live": 1, "interval_busy": 0,
			"stored_per_second": 0})
		if rate := row["hits_per_second"].(float64); rate < 10 || rate > 20000 {
			t.Error("hits per second", rate)
		}
		if rate := row["interval_hit_rate"].(float64); rate < 0.45 || rate > 0.55 {
			t.Error("hit rate", rate)
		}
		if s := row["interval_seconds"].(float64); s < 0.01 || s > 5 {
			t.Error("seconds", s)
		}
	}
	child.end(t)
	// It goes on without the process, with zero rates.
	row := watched(t, ok(t, "stats", path, "--watch", "--count", "1", "--interval", "10ms", "--json"))[0]
	wantFields(t, row, jsonObject{"interval_hit_rate": nil, "hits_per_second": 0, "clients_live": 0, "clients_ended": 1})
}

func watched(t *testing.T, text string) (rows []jsonObject) {
	t.Helper()
	for _, line := range lines(text) {
		rows = append(rows, decode[jsonObject](t, line))
	}
	return rows
}

// Ensure that the rates are those of the interval, not of the cache's life.
func TestWatchInterval(t *testing.T) {
	_, path := newCache(t, small())
	c := newClient(t, path)
	w := watch{dir: &dirFlag{}, name: path}
	look := func() jsonObject {
		t.Helper()
		changes, err := w.read(io.Discard)
		if err != nil || len(changes) != 1 {
			t.Fatal(changes, err)
		}
		b := fatal.Value(json.Marshal(changes[0].object()))(t)
		return decode[jsonObject](t, string(b))
	}
	view := func(i, times int) {
		t.Helper()
		for range times {
			if _, _, err := c.View(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	view(0, 10)
	wantFields(t, look(), jsonObject{"interval_hit_rate": nil, "hits_per_second": nil, "interval_seconds": nil,
		"interval_full": nil})
	store(t, c, 0, 1)
	view(0, 3)
	view(5, 1)
	row := look()
	wantFields(t, row, jsonObject{"interval_hit_rate": 0.75, "ready": 2, "interval_full": 0})
	seconds := row["interval_seconds"].(float64)
	for field, n := range map[string]float64{"hits_per_second": 3, "misses_per_second": 1, "stored_per_second": 2,
		"stored_bytes_per_second": 200} {
		if got := row[field].(float64) * seconds; got < n-0.001 || got > n+0.001 {
			t.Errorf("%s x %v seconds is %v, want %v", field, seconds, got, n)
		}
	}
	store(t, c, 2, 3, 4, 5)
	fatal.Value(c.Set(6, content(6, 100), 0))(t)
	wantFields(t, look(), jsonObject{"interval_hit_rate": nil, "interval_full": 1})

	// Another cache of the same name does not continue this one's interval.
	fatal.If(t, shm.Unlink(path))
	if _, err := w.read(io.Discard); exitCode(err) != exitNotFound {
		t.Fatal(err)
	}
	o := small()
	o.Name, o.Dir = "test", strings.TrimSuffix(path, "/test")
	seg := fatal.Value(shm.Create(o))(t)
	seg.Close()
	wantFields(t, look(), jsonObject{"interval_hit_rate": nil, "hits_per_second": nil, "ready": 0})
}

// Ensure that a terminal gets the lines of a pipe, with their heading again after each 20 of them.
func TestWatchTerminal(t *testing.T) {
	dir, path := newCache(t, small())
	store(t, newClient(t, path), 0, 1)
	for _, caches := range [][]string{{path}, {"--dir", dir}} {
		args := append([]string{"stats", "--watch", "--count", "41", "--interval", "1ms"}, caches...)
		stdout, written := terminal(t)
		fatal.Equal(t, Run(args, stdout, io.Discard), exitOK, "")
		shown, piped := lines(written()), lines(ok(t, args...))
		if len(shown) != 44 || len(piped) != 42 {
			t.Fatalf("%d lines on a terminal and %d in a pipe", len(shown), len(piped))
		}
		for k, line := range shown {
			if heading := strings.TrimRight(line, "\r\n")+"\n" == piped[0]; heading != (k%21 == 0) {
				t.Errorf("line %d: %q", k, line)
			}
			if !strings.HasSuffix(line, " NAME\r\n") && !strings.HasSuffix(line, " test\r\n") || len(line) > 84 {
				t.Errorf("line %d: %q", k, line)
			}
		}
	}
}

// Ensure that watching may begin before a program makes the cache, says that it waits, and counts
// intervals from then on.
func TestWatchWaits(t *testing.T) {
	dir := tmpfs.Folder(t)
	for _, flags := range [][]string{{"--dir", dir, "later"}, {filepath.Join(dir, "later")}} {
		said, stderr := io.Pipe()
		var stdout strings.Builder
		code := make(chan int)
		go func() {
			code <- Run(append([]string{"stats", "--watch", "--count", "2", "--interval", "10ms"}, flags...), &stdout,
				stderr)
		}()
		line, err := bufio.NewReader(said).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "no cache ") || !strings.Contains(line, "later") ||
			!strings.Contains(line, dir) || !strings.Contains(line, "waiting") {
			t.Fatalf("%q, %v", line, err)
		}
		o := small()
		o.Name, o.Dir = "later", dir
		seg := fatal.Value(shm.Create(o))(t)
		if c := <-code; c != exitOK || len(lines(stdout.String())) != 3 {
			t.Errorf("exit %d: %s", c, stdout.String())
		}
		path := seg.Path()
		fatal.If(t, errors.Join(seg.Close(), shm.Unlink(path)))
	}
	code, stdout, stderr := cli(t, "stats", "--dir", dir, "--watch", "--count", "1", "--interval", "1ms")
	if code != exitOK || len(lines(stdout)) != 1 || !strings.Contains(stderr, "no caches in "+dir+" yet") {
		t.Errorf("exit %d: %q, %q", code, stdout, stderr)
	}
	// No program can make a cache of such a name.
	fails(t, exitNotFound, []string{"stocached:12345678"}, "stats", "stocached:12345678", "--watch")
	fails(t, exitUsage, []string{`"a b" is not`}, "stats", "a b", "--watch")
}

// Ensure that watching ends without an error when the cache is gone.
func TestWatchGone(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 10, SampleBytes: 100, UnlinkLast: true})
	child := start(t, "use", path)
	reader, writer := io.Pipe()
	code := make(chan int)
	var stderr strings.Builder
	go func() { code <- Run([]string{"stats", path, "--watch", "--interval", "20ms"}, writer, &stderr) }()
	in := bufio.NewReader(reader)
	for range 3 {
		fatal.Value(in.ReadString('\n'))(t)
	}
	go io.Copy(io.Discard, in)
	child.end(t) // its last user removes the cache; watching is no user
	select {
	case c := <-code:
		if c != exitOK || !strings.Contains(stderr.String(), path+" is gone") {
			t.Error(c, stderr.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on without the cache")
	}
	fails(t, exitNotFound, []string{"no such cache"}, "stats", path)
}

// Ensure that an interrupt ends watching without an error, and that the process writes each line to
// a pipe at once.
func TestWatchInterrupt(t *testing.T) {
	_, path := newCache(t, small())
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd := program("stats", path, "--watch", "--interval", "20ms")
		stdout := fatal.Value(cmd.StdoutPipe())(t)
		fatal.If(t, cmd.Start())
		in := bufio.NewReader(stdout)
		for range 3 {
			if line, err := in.ReadString('\n'); err != nil {
				t.Fatal(line, err)
			}
		}
		fatal.If(t, cmd.Process.Signal(signal))
		io.Copy(io.Discard, in)
		if err := cmd.Wait(); err != nil {
			t.Error(fmt.Errorf("%v: %w", signal, err))
		}
	}
	if err := program("stats", path+"x").Run(); err == nil || err.(*exec.ExitError).ExitCode() != exitNotFound {
		t.Error(err)
	}
}
