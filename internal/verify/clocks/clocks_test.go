// Package clocks holds one test: that no timer depends on the time of day.
package clocks

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// ofDay are the files that write the time of day for people, or for other programs and machines, and those that compare
// the times of files.
var ofDay = []string{"cache/client.go", "shm/header.go", "shm/heap.go", "tier/cluster/lease.go",
	"internal/cli/table/value.go", "server/admin/metrics.go", "internal/cli/live/live.go", "internal/cli/web/web.go",
	"cache/stats.go", "source/file.go", "source/dir/manifest.go", "source/dir/walk.go"}

// A Unix time is a time of day, also where it is kept as a number, and Round(0) takes away the other clock that a time.Time
// has.
var timeOfDay = regexp.MustCompile(`\.Unix(Nano|Milli|Micro)?\(\)|time\.Unix(Milli|Micro)?\([^1]|\.Round\(0\)`)

// Ensure that nothing else keeps a time of day, which an operator or a time server may set: package clock has times that
// are kept as numbers.
func TestTimers(t *testing.T) {
	wantOnly(t, ".go", timeOfDay, ofDay, "build", "bench", "bin", "python", "internal/verify")
}

// The same in C and Python. C also has waits that end at a time of day.
var (
	ofDayInC = []string{"cclient/src/protocol/client.c", "cclient/src/protocol/create.c", "cclient/src/protocol/disk.c"}
	inC      = regexp.MustCompile(`CLOCK_REALTIME|gettimeofday|\btime\((NULL|0|&)|(sem|mutex|cond)_timed(wait|lock)|thrd_sleep|timespec_get`)

	// once_per_machine.py, on_demand.py: how old files of others are
	ofDayInPython = []string{"python/src/stocached/_trace/recorder.py", "python/src/stocached/_common/once_per_machine.py",
		"python/src/stocached/_cache/on_demand.py"}
	inPython = regexp.MustCompile(`\btime\.time(_ns)?\(|CLOCK_REALTIME|datetime\.(now|utcnow|today)|from time import .*\btime\b`)
)

// Ensure that no timer of the C and Python clients depends on the time of day either.
func TestTimersOfClients(t *testing.T) {
	wantOnly(t, ".c", inC, ofDayInC, "build", "bench", "bin", "python", "cclient/ctest")
	wantOnly(t, ".h", inC, nil, "build", "bench", "bin", "python")
	wantOnly(t, ".py", inPython, ofDayInPython, "build", "bench", "bin", "python/tests", "python/suites", "tools", "demo", "examples")
}

// wantOnly fails if other files than these match, or if one of these does not.
func wantOnly(t *testing.T, suffix string, pattern *regexp.Regexp, allowed []string, skip ...string) {
	t.Helper()
	found := map[string]bool{}
	root := "../../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && path != root || slices.Contains(skip, name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, suffix) || strings.HasSuffix(name, "_test.go") || slices.Contains(skip, name) {
			return nil
		}
		text, err := os.ReadFile(path)
		for k, line := range strings.Split(string(text), "\n") {
			if pattern.MatchString(line) {
				if found[name] = true; !slices.Contains(allowed, name) {
					t.Errorf("%s:%d keeps a time of day: %s", name, k+1, strings.TrimSpace(line))
				}
			}
		}
		return err
	})
	fatal.If(t, err)
	for _, name := range allowed {
		if !found[name] {
			t.Errorf("%s keeps no time of day", name)
		}
	}
}
