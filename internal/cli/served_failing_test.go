package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// storage is a web server of n records, which answers with a status of the test's choice; 0: as it should.
type storage struct {
	*httptest.Server
	status atomic.Int64
	asked  atomic.Int64
}

func newStorage(t *testing.T, n int) *storage {
	s := &storage{}
	var all strings.Builder
	for i := range n {
		all.Write(servedRecord(i))
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if status := s.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(all.String()))
	}))
	t.Cleanup(s.Close)
	return s
}

// healthSays waits until health has all of the words.
func (s *served) healthSays(words ...string) {
	s.t.Helper()
	fatal.Until(s.t, strings.Join(words, ", "), func() bool {
		_, out, stderr := cli(s.t, "health", "--sockets", s.sockets)
		for _, w := range words {
			if !strings.Contains(out+stderr, w) {
				return false
			}
		}
		return true
	})
}

// Ensure that a storage that does not answer is seen at once, while its reads are tried again: in the log, health, stats
// and metrics. The reads succeed when it is back.
func TestDeadStorage(t *testing.T) {
	patient(t)
	web := newStorage(t, 20)
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %q, sample_bytes: %d}", web.URL+"/records", servedBytes))
	s.start()
	s.healthSays("is well and serves")
	web.status.Store(http.StatusServiceUnavailable)
	c := s.dial()
	read := make(chan error, 1)
	go func() { read <- c.Fetch(context.Background(), first(5), make([]byte, 5*servedBytes), servedBytes) }()
	s.healthSays("serves, but not everything is well", "cache pets: reads that have failed and will be tried again: ",
		"cache pets: reads fail (unavailable): first ", "503")
	contains(t, s.said(), "reads of the source fail", "kind=unavailable", "tried_again=true", "503")
	for name, labels := range map[string]string{"stocached_retrying_reads": `cache="pets"`,
		"stocached_failing_seconds": `cache="pets",kind="unavailable"`, "stocached_source_retries_total": `cache="pets",kind="unavailable"`} {
		if s.metric(name, labels) <= 0 {
			t.Errorf("%s is 0", name)
		}
	}
	contains(t, ok(t, "stats", "--sockets", s.sockets, s.segments+"/pets"), "\nfailing ", "reads fail (unavailable): first ", "503")
	stats := decode[jsonObject](t, ok(t, "stats", "--sockets", s.sockets, "--json", s.segments+"/pets"))
	if all := stats["failures"].([]any); len(all) != 1 || all[0].(jsonObject)["kind"] != "unavailable" ||
		!strings.Contains(all[0].(jsonObject)["error"].(string), "503") || stats["retrying_reads"].(float64) == 0 {
		t.Errorf("%v", stats)
	}
	brief := ok(t, "stats", "--sockets", s.sockets, s.segments+"/pets")
	contains(t, brief, "reads that have failed and will be tried again: ", "failing", "reads fail (unavailable): first ", "503")
	select {
	case err := <-read:
		t.Fatal(err)
	default:
	}
	web.status.Store(0)
	expect.NoError(t, <-read)
	expect.Equal(t, strings.Count(s.said(), "reads of the source fail"), 1, "first lines in the log")
}

// Ensure that each kind of failure that an operator can mend has its own alert: in metrics, health and log.
func TestKindsOfFailures(t *testing.T) {
	web := newStorage(t, 5)
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %q, sample_bytes: %d}", web.URL+"/records", servedBytes))
	s.start()
	c := s.dial()
	for status, kind := range map[int64]string{http.StatusForbidden: "denied", http.StatusNotFound: "missing",
		http.StatusPreconditionFailed: "changed"} {
		web.status.Store(status)
		var failed *stocclient.FetchError
		if err := c.Fetch(context.Background(), []int{1}, make([]byte, servedBytes), servedBytes); !errors.As(err, &failed) {
			t.Fatal(status, err)
		}
		s.healthSays("cache pets: reads fail ("+kind+"): first ", fmt.Sprint(status))
		contains(t, s.said(), "kind="+kind)
		if s.metric("stocached_failing_seconds", fmt.Sprintf("cache=%q,kind=%q", "pets", kind)) <= 0 {
			t.Errorf("%s does not fail", kind)
		}
	}
}

// Ensure that requests of an opening that are tried again are seen in the log, before the server serves.
func TestDeadStorageAtTheStart(t *testing.T) {
	web := newStorage(t, 5)
	web.status.Store(http.StatusServiceUnavailable)
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %q, sample_bytes: %d}", web.URL+"/records", servedBytes))
	out := s.launch()
	fatal.Until(t, "the log tells", func() bool { return strings.Contains(s.said(), "reads of the source fail") })
	contains(t, s.said(), "cache=pets", "kind=unavailable", "tried_again=true")
	web.status.Store(0)
	line := make([]byte, 200)
	if n, err := out.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "serving 1 cache on") {
		t.Errorf("%q, %v", line[:n], err)
	}
}

// Ensure that a reload that was refused is seen until one succeeds.
func TestRefusedReload(t *testing.T) {
	s := newServed(t, 5, "8MiB")
	began := s.metric("stocached_reload_time_seconds", "")
	if s.metric("stocached_reload_success", "") != 1 || began == 0 {
		t.Error("the configuration of the start is in force")
	}
	good := s.configuration("", "")
	s.configure("cashes: []\n")
	s.hangup("was not applied")
	s.healthSays("serves, but not everything is well", "was not applied: ", "config.yaml: caches: a server needs at least one cache; to remove the last one, end the server, and run stocached rm; cashes: there")
	if at := s.metric("stocached_reload_time_seconds", ""); s.metric("stocached_reload_success", "") != 0 || at < began {
		t.Error(at, began)
	}
	if got := decode[jsonObject](t, ok(t, "health", "--sockets", s.sockets, "--json"))["reload"].([]any); len(got) != 1 {
		t.Error(got)
	}
	s.configure(good)
	s.hangup("is in force")
	s.healthSays("is well and serves")
	if s.metric("stocached_reload_success", "") != 1 {
		t.Error("a reload that succeeded counts as failed")
	}
}

// Ensure that a server whose cache lost its file to another program says so until it is restarted. Its clients go on.
func TestRemovedFile(t *testing.T) {
	s := newServed(t, 5, "8MiB")
	c := s.dial()
	fatal.If(t, os.Remove(s.segments+"/pets"))
	s.healthSays("not everything is well", "cache pets: another program removed the file "+s.segments+"/pets", "restart the server")
	fatal.Until(t, "the log tells", func() bool { return strings.Contains(s.said(), "another program removed the file") })
	wantFetch(t, c, first(5))
	wantFetch(t, s.dial(), first(5))
	s.kill()
	s.start()
	s.healthSays("is well and serves")
	wantFetch(t, s.dial(), first(5))
}

// Ensure that source info and the log of a server say once that a web server does not tell its changes, and what
// to do. They say nothing of one that does.
func TestWebServerThatHidesChanges(t *testing.T) {
	for modified, times := range map[time.Time]int{{}: 1, time.Unix(1e9, 0): 0} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, r.URL.Path, modified, bytes.NewReader(servedRecord(0)))
		}))
		defer web.Close()
		s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %s/records, sample_bytes: %d}", web.URL, servedBytes))
		s.start()
		wantFetch(t, s.dial(), []int{0})
		info := ok(t, "source", "info", web.URL+"/records", "--kind", "raw", "--source", fmt.Sprintf("sample_bytes=%d", servedBytes))
		for what, text := range map[string]string{"source info": info, "the log": s.said()} {
			if n := strings.Count(text, "sends neither ETag nor Last-Modified (objects: 1, such as "+web.URL+"/records)"); n != times ||
				strings.Count(text, "another name") != n {
				t.Errorf("%s says it %d times, want %d:\n%s", what, n, times, text)
			}
		}
	}
}
