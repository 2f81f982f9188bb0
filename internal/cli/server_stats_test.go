package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// serverFields are null in JSON without a server.
var serverFields = []string{"server", "connected", "queue_depth", "source_reads", "source_read_bytes", "shared_reads",
	"source_errors", "source_retries", "retrying_reads", "failures", "bad_samples", "store", "store_reason", "stuck_reads", "fill_mean_seconds", "fill_p99_seconds", "adopted"}

// patient gives servers time to answer, however busy the machine is, until impatient is called or the test ends.
func patient(t *testing.T) (impatient func()) {
	short := serverDeadline
	serverDeadline = time.Minute
	impatient = func() { serverDeadline = short }
	t.Cleanup(impatient)
	return impatient
}

// Ensure that stats shows the counters of the server, and those of the segment in every state of
// the server: alive, stopped, killed, or at other sockets.
func TestStatsOfAServer(t *testing.T) {
	impatient := patient(t)
	const n = 40
	tree := func(folder string) {
		for i := range n {
			name := filepath.Join(folder, "files", string(rune('A'+i)))
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700),
				os.WriteFile(name, content(i, 100), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := newServedCaches(t, tree, "name: pets, source: {kind: dir, path: files}")
	path := filepath.Join(d.segments, "pets")
	stats := func() jsonObject { return decode[jsonObject](t, ok(t, d.args("stats", path, "--json")...)) }
	c := d.dialFor("pets", 0)
	wantFields(t, stats(), jsonObject{"connected": 1})
	fatal.If(t, c.Close())
	fatal.Until(t, "it forgets who is gone", func() bool { return stats()["connected"] == 0.0 })
	wantFields(t, stats(), jsonObject{"server": "answers", "stuck_reads": 0, "source_reads": 0, "shared_reads": 0, "queue_depth": 0,
		"bad_samples":       0,
		"fill_mean_seconds": nil, "fill_p99_seconds": nil, "source_errors": jsonObject{}, "adopted": false})
	if err := errors.Join(os.Remove(filepath.Join(d.folder, "files", "C")),
		os.Truncate(filepath.Join(d.folder, "files", "E"), 3)); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := cli(t, d.args("warm", "pets")...); code != exitFailed {
		t.Error("exit", code)
	}
	got := stats()
	wantFields(t, got, jsonObject{"server": "answers", "samples": n, "ready": n - 2, "source_reads": n - 2,
		"source_read_bytes": (n - 2) * 100, "source_errors": jsonObject{"missing": 1, "changed": 1}})
	mean, p99 := got["fill_mean_seconds"].(float64), got["fill_p99_seconds"].(float64)
	if mean <= 0 || mean > 10 || p99 <= 0 || p99 > 10 {
		t.Error(mean, p99)
	}
	wantFields(t, decode[[]jsonObject](t, ok(t, d.args("stats", "--dir", d.segments, "--json")...))[0],
		jsonObject{"server": "answers", "source_reads": n - 2})
	text := ok(t, d.args("stats", path, "--all")...)
	contains(t, text, "server          answers\n", "source reads    38\n", "source errors   changed 1, missing 1\n",
		"bytes read      3.7 KiB\n", "adopted         no\n")
	watched := ok(t, d.args("stats", path, "--watch", "--count", "1", "--interval", "1ms", "--json")...)
	wantFields(t, decode[jsonObject](t, watched), jsonObject{"server": "answers", "source_reads": n - 2})
	if table := ok(t, d.args("stats", "--dir", d.segments)...); strings.Contains(strings.ToLower(table), "source") {
		t.Error(table)
	}

	// At other sockets there is no server, or one with another cache of that name.
	other := newServedCaches(t, tree, "name: pets, source: {kind: dir, path: files}")
	wantSame := func(silent string, args ...string) {
		t.Helper()
		began := time.Now()
		now := decode[jsonObject](t, ok(t, append(args, "--json")...))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		for field, value := range got {
			// the state of the server's own record
			if field == "clients_live" || field == "clients_ended" || field == "recovered" || field == "no_prediction" {
				continue
			}
			if field == "predicted_hit_rate" { // nobody has watched
				value = nil
			}
			for _, f := range serverFields {
				if f == field {
					value = nil
				}
			}
			if field == "server" {
				if why, _ := now[field].(string); !strings.Contains(why, silent) || (why == "") != (silent == "") {
					t.Errorf("%v, want %q", now[field], silent)
				}
				continue
			}
			wantFields(t, now, jsonObject{field: value})
		}
		text := ok(t, args...)
		if strings.Contains(text, "source reads") || strings.Contains(text, "\nserver ") != (silent != "") ||
			!strings.Contains(text, silent) || !strings.Contains(text, "filled ") {
			t.Errorf("%q in\n%s", silent, text)
		}
	}
	wantSame("but none answers on /nowhere", "stats", path, "--sockets", "/nowhere")
	wantSame("has another cache of that name", "stats", path, "--sockets", other.sockets)
	pause(t, d.process)
	impatient()
	wantSame("but none answers on "+d.sockets, d.args("stats", path)...)
	var out bytes.Buffer
	began := time.Now()
	watch := program(d.args("stats", path, "--watch", "--count", "50", "--interval", "10ms", "--json")...)
	watch.Stdout = &out
	if err := watch.Run(); err != nil || len(lines(out.String())) != 50 || time.Since(began) > 50*serverDeadline {
		t.Errorf("%v, %d lines after %v", err, len(lines(out.String())), time.Since(began))
	}
	d.end(syscall.SIGKILL)
	wantSame("", d.args("stats", path)...)
	patient(t)
	d.start()
	wantFields(t, stats(), jsonObject{"server": "answers", "adopted": false, "samples": n - 1})
	d.end(syscall.SIGTERM)
	d.start()
	contains(t, ok(t, d.args("stats", path, "--all")...), "adopted         yes\n", "source errors   0\n", "fill p99        -\n")
}
