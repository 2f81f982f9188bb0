package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that a server serves, says where, ends on SIGTERM, and leaves its cache; that a second one
// is refused; and that SIGKILL does no harm.
func TestServe(t *testing.T) {
	s := smallServed(t)
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		if line, want := s.start(), "serving 1 cache on "+s.sockets+"\n"; line != want {
			t.Errorf("%q, want %q", line, want)
		}
		wantFetch(t, s.dial(), []int{3})
		fails(t, exitExists, []string{"another process answers on"}, "serve", "-c", s.path)
		s.end(end)
		seg := fatal.Value(shm.Open(filepath.Join(s.segments, "pets"), shm.OpenOptions{}))(t)
		if seg.Samples != 20 || !strings.HasPrefix(seg.Header.Fingerprint, "raw-") {
			t.Errorf("%+v", seg.Header)
		}
		seg.Close()
	}
}

// Ensure that a server that is ended while it opens its sources exits with 0: a service manager
// takes another exit status for a failure.
func TestServeEndsWhileItBegins(t *testing.T) {
	asked := make(chan struct{}, 1)
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(hangs.Close)
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %s/records, sample_bytes: %d}", hangs.URL, servedBytes))
	s.launch()
	<-asked
	s.end(syscall.SIGTERM)
	if left, err := os.ReadDir(s.sockets); err != nil || len(left) != 1 || left[0].Name() != "served" {
		t.Errorf("it leaves %v, %v; wanted only the mark that a server has run", left, err)
	}
}

func TestServeCheck(t *testing.T) {
	s := smallServed(t)
	path, segments, sockets := s.path, s.segments, s.sockets
	if got, want := ok(t, "serve", "-c", path, "--check"), path+": good, 1 cache\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, left := range []string{sockets, filepath.Join(segments, "pets")} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("a check made %s", left)
		}
	}
	fatal.If(t, os.Remove(filepath.Join(s.folder, "records")))
	fails(t, exitNotFound, []string{s.records}, "serve", "-c", path, "--check")
	fatal.If(t, os.WriteFile(path, []byte("caches: [{nam: pets}]"), 0o600))
	fails(t, exitUsage, []string{"caches[0].nam: there is no such key"}, "serve", "-c", path, "--check")
	fails(t, exitNotFound, []string{"none.yaml"}, "serve", "-c", filepath.Join(filepath.Dir(path), "none.yaml"))
	fails(t, exitUsage, []string{"config"}, "serve")
}

func TestConfigPrint(t *testing.T) {
	s := smallServed(t)
	path, sockets := s.path, s.sockets
	t.Setenv("STOCACHED_LOG_LEVEL", "warn")
	got := ok(t, "config", "print", "-c", path)
	contains(t, got, "sockets.dir", sockets, "file", "log.level", "warn", "STOCACHED_LOG_LEVEL", "log.format", "text",
		"default")
	objects := decode[[]jsonObject](t, ok(t, "config", "print", "-c", path, "--json"))
	k := slices.IndexFunc(objects, func(o jsonObject) bool { return o["key"] == "sockets.dir" })
	if k < 0 {
		t.Fatalf("%v", objects)
	}
	wantFields(t, objects[k], jsonObject{"key": "sockets.dir", "value": sockets, "from": "file"})
	contains(t, got, "caches[0].source.kind", "raw")
}
