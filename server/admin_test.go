package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source/sourcetest"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"golang.org/x/sys/unix"
)

// ask requests a path from the admin socket.
func ask(t *testing.T, s *server.Server, path string) (code int, body string) {
	t.Helper()
	return tell(t, s, "GET", path, "")
}

// tell sends a request with a body to the admin socket.
func tell(t *testing.T, s *server.Server, method, path, body string) (code int, answer string) {
	t.Helper()
	var text bytes.Buffer
	code = tellInto(t, &text, s, method, path, body)
	return code, text.String()
}

func tellInto(t *testing.T, answer io.Writer, s *server.Server, method, path, body string) (code int) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.Dir(), control.AdminSocket))
	}}
	defer transport.CloseIdleConnections()
	q := fatal.Value(http.NewRequest(method, "http://stocached"+path, strings.NewReader(body)))(t)
	r := fatal.Value(transport.RoundTrip(q))(t)
	defer r.Body.Close()
	fatal.Value(io.Copy(answer, r.Body))(t)
	return r.StatusCode
}

// wantRequest checks the code of an operator's request and parts of its error, and returns the answer.
func wantRequest(t *testing.T, s *server.Server, method, path, body string, code int, texts ...string) (answer map[string]any) {
	t.Helper()
	got, text := tell(t, s, method, path, body)
	if err := json.Unmarshal([]byte(text), &answer); got != code || err != nil {
		t.Errorf("%s %s %s: %d, want %d: %s, %v", method, path, body, got, code, text, err)
	}
	for _, want := range texts {
		if !strings.Contains(text, want) {
			t.Errorf("%s %s %s: %s, want %q", method, path, body, text, want)
		}
	}
	return answer
}

// wantLines checks that a text has these lines.
func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}

// wantMetrics checks that the metrics have these lines.
func wantMetrics(t *testing.T, s *server.Server, lines ...string) {
	t.Helper()
	_, text := ask(t, s, "/metrics")
	wantLines(t, text, lines...)
}

func TestAdmin(t *testing.T) {
	m := newMemory(20, 1000)
	m.fails[7] = fmt.Errorf("read /data/7: %w", unix.EIO)
	o := options(t, m, server.CacheOptions{})
	o.MetricsListen = ":0"
	s, _ := start(t, o)
	if st, err := os.Stat(filepath.Join(s.Dir(), control.AdminSocket)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	p, number, seg := join(t, s)
	p.fetch(number, 0, 1, 2, 3, 7)
	c := view(t, seg)
	wantReady(t, c, 1, 1000)
	c.View(9)

	fatal.Until(t, "it is ready", func() bool { code, _ := ask(t, s, "/readyz"); return code == 200 })
	if code, body := ask(t, s, "/healthz"); code != 200 || body != "ok\n" {
		t.Error(code, body)
	}
	code, body := ask(t, s, "/v1/caches/pets")
	var one struct {
		Name        string
		Samples     int
		Fingerprint string
		Source      string
		Stats       map[string]any
	}
	if err := json.Unmarshal([]byte(body), &one); code != 200 || err != nil || one.Name != "pets" ||
		one.Samples != 20 || one.Fingerprint != "memory-1" || one.Source != "memory" ||
		one.Stats["ready"] != 3.0 || one.Stats["hits"] != 1.0 || one.Stats["misses"] != 1.0 {
		t.Errorf("%d %v %+v", code, err, one)
	}
	for _, path := range []string{"/v1/caches", "/stats"} {
		code, body = ask(t, s, path)
		var all []map[string]any
		if err := json.Unmarshal([]byte(body), &all); code != 200 || err != nil || len(all) != 1 ||
			all[0]["name"] != "pets" {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body = ask(t, s, "/v1/caches/cats"); code != 404 || !strings.Contains(body, "it has: pets") {
		t.Error(code, body)
	}
	if code, body = ask(t, s, "/nothing"); code != 404 || !strings.Contains(body, "/v1/caches/NAME") {
		t.Error(code, body)
	}

	r := fatal.Value(http.Get("http://" + s.MetricsAddress().String() + "/metrics"))(t)
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.StatusCode != 200 || !strings.HasPrefix(s.MetricsAddress().String(), "127.0.0.1:") {
		t.Fatal(r.Status, err, s.MetricsAddress())
	}
	wantLines(t, string(text),
		`stocached_samples{cache="pets"} 20`, `stocached_slots{cache="pets"} 20`,
		`stocached_slots_filled{cache="pets"} 3`, `stocached_clients{cache="pets"} 2`,
		`stocached_hits_total{cache="pets"} 1`, `stocached_misses_total{cache="pets"} 1`,
		`stocached_fills_total{cache="pets"} 3`, `stocached_fill_bytes_total{cache="pets"} 3000`,
		`stocached_source_reads_total{cache="pets"} 3`, `stocached_source_read_bytes_total{cache="pets"} 3000`,
		`stocached_source_errors_total{cache="pets",kind="unavailable"} 1`,
		`stocached_fill_seconds_count{cache="pets"} 3`, `stocached_fill_seconds_bucket{cache="pets",le="+Inf"} 3`,
		`stocached_policy{cache="pets",policy="first-come"} 1`, `stocached_evicted_total{cache="pets"} 0`,
		`stocached_recovered_slots_total{cache="pets"} 0`, `stocached_queue_depth{cache="pets"} 0`,
	)
	problems, err := promlint.New(strings.NewReader(string(text))).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if _, overSocket := ask(t, s, "/metrics"); !strings.Contains(overSocket, "stocached_samples") {
		t.Error(overSocket)
	}
}

// The metrics of a cache with the policy cost say what it saves beside what first-come would save.
func TestMetricsOfCosts(t *testing.T) {
	s, _ := start(t, options(t, newMemory(20, 1000), server.CacheOptions{Size: 6 << 20, Policy: shm.PolicyCost}))
	_, _, c := attachTo(t, s)
	for i := range 4 {
		took := time.Duration(i+1) * 10 * time.Millisecond
		fatal.Value(c.SetLoaded(i, [][]byte{sourcetest.Content(i, 1000)}, 0, took))(t)
	}
	sums, err := c.Stats()
	if err != nil || sums.Costs.Known != 4 || sums.Costs.SavedSeconds < 0.08 {
		t.Fatal(sums, err)
	}
	_, text := ask(t, s, "/metrics")
	wantLines(t, text,
		`stocached_policy{cache="pets",policy="cost"} 1`, `stocached_known_costs{cache="pets"} 4`,
		fmt.Sprintf(`stocached_saved_seconds{cache="pets"} %v`, sums.Costs.SavedSeconds),
		fmt.Sprintf(`stocached_first_come_saved_seconds{cache="pets"} %v`, sums.Costs.FirstComeSeconds()),
	)
	if strings.Contains(text, "arena_bytes{") {
		t.Error("a fixed-size cache has an arena")
	}
}

// The metrics of a variable-size cache that evicts say what its arena holds, and what is lost of it.
func TestMetricsOfAnArena(t *testing.T) {
	s, _ := start(t, options(t, newMemoryOf(20, 1000, true), server.CacheOptions{Size: 6 << 20, Policy: shm.PolicyLRU}))
	_, _, seg := join(t, s) // slots of 64 bytes
	c := view(t, seg)
	for i := range 4 {
		fatal.Value(c.Set(i, sourcetest.Content(i, 500), 0))(t)
	}
	_, text := ask(t, s, "/metrics")
	wantLines(t, text,
		`stocached_slots{cache="pets"} 0`, `stocached_arena_bytes{cache="pets",use="samples"} 2000`,
		`stocached_arena_bytes{cache="pets",use="ends"} 48`,
		fmt.Sprintf(`stocached_arena_bytes{cache="pets",use="free"} %v`, float64(seg.PayloadBytes-4*512)),
	)
}

// The server says what an epoch should do and what the last one did, for a cache with the policy cost. The numbers are those
// of internal/advise, which compares them.
func TestPredictedAndObserved(t *testing.T) {
	const samples = 1000
	m := newMemory(samples, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: sizeFor(t, m, 200), Policy: shm.PolicyCost}))
	_, _, c := attachTo(t, s)
	a := about(t, s)
	if a["predicted_hit_rate"] != nil || a["observed_hit_rate"] != nil || a["no_prediction"] !=
		"cache pets has measured no load yet. Run an epoch whose loader stores into it, then ask again" {
		t.Error(a)
	}
	for _, name := range []string{"predicted_hit_rate", "observed_hit_rate", "predicted_load_seconds",
		"observed_load_seconds", "predicted_saved_seconds", "observed_saved_seconds", "observed_evicted"} {
		wantMetrics(t, s, fmt.Sprintf(`stocached_%s{cache="pets"} NaN`, name))
	}
	dst := make([]byte, 100)
	for range 3 {
		for i := range samples {
			if _, hit, err := c.Get(i, dst); err != nil {
				t.Fatal(err)
			} else if !hit {
				took := time.Duration(1+i%7) * time.Millisecond
				fatal.Value(c.SetLoaded(i, [][]byte{sourcetest.Content(i, 100)}, 0, took))(t)
			}
		}
		a = about(t, s)
	}
	_, text := ask(t, s, "/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) != 0 || a["no_prediction"] != "" {
		t.Error(problems, err, a["no_prediction"])
	}
	for _, name := range []string{"predicted_hit_rate", "observed_hit_rate", "predicted_load_seconds",
		"observed_load_seconds", "predicted_saved_seconds", "observed_saved_seconds"} {
		if value, known := a[name].(float64); !known || value <= 0 {
			t.Errorf("%s: %v", name, a[name])
		}
		wantLines(t, text, fmt.Sprintf(`stocached_%s{cache="pets"} %v`, name, a[name]))
	}
}

// Ensure that an operator who is refused again and again does not fill the log.
func TestRefusalsTakeFewLines(t *testing.T) {
	var log bytes.Buffer
	o := options(t, newMemory(4, 8), server.CacheOptions{})
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s, stop := start(t, o)
	for range 3 * fewlines.PerMinute {
		wantRequest(t, s, "DELETE", "/v1/caches/none/plan", "", 404)
	}
	stop()
	expect.Equal(t, strings.Count(log.String(), "an operator was refused"), fewlines.PerMinute, "lines in\n%s", log.String())
}
