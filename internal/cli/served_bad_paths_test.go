package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Ensure that a path that cannot be a source is an error of the operator, for every kind of source,
// and makes nothing.
func TestPathsThatCanBeNoSource(t *testing.T) {
	s := newServed(t, 10, "all")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Symlink("loop", in("loop")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	refuses := func(source map[string]any) {
		t.Helper()
		cache, err := json.Marshal(map[string]any{"name": "other", "dir": s.segments, "source": source}) // which YAML reads
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(before), "caches: [", "caches: ["+string(cache)+", ", 1)
		if err := os.WriteFile(s.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		status, answer := s.ask(http.MethodPost, "/v1/reload", "")
		if status != http.StatusOK || !strings.Contains(answer, `"result":"refused"`) || !strings.Contains(answer, "cache other: ") {
			t.Errorf("%.120s: %d %.300s", cache, status, answer)
		}
	}
	for _, path := range []string{strings.Repeat("/x", 3000), in(strings.Repeat("x", 300)), in("a\x00b"), in("loop"),
		in("fifo"), in("nothing"), in("nothing/below"), "/dev/null", s.records + "/below"} {
		for _, kind := range []string{"raw", "npy", "tar", "block", "dir"} {
			source := map[string]any{"kind": kind, "path": path}
			if kind == "raw" {
				source["sample_bytes"] = 10
			}
			refuses(source)
		}
		if path != in("fifo") && path != "/dev/null" { // these may be read as a list
			refuses(map[string]any{"kind": "dir", "path": filepath.Dir(s.records), "manifest": path})
		}
	}
}
