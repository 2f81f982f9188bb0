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
)

// ofDay are the files that write the time of day for people, or for other programs and machines.
var ofDay = []string{"cache/client.go", "shm/header.go", "shm/heap.go", "tier/cluster/lease.go", "tier/cluster/redistest/certificate.go",
	"internal/cli/table/value.go", "server/admin/metrics.go", "internal/cli/live/live.go", "internal/cli/web/web.go",
	"cache/stats.go"}

// A Unix time is a time of day, also where it is kept as a number, and Round(0) takes away the other clock that a time.Time
// has.
var timeOfDay = regexp.MustCompile(`\.Unix(Nano|Milli|Micro)?\(\)|time\.Unix(Milli|Micro)?\([^1]|\.Round\(0\)`)

// Ensure that nothing else keeps a time of day, which an operator or a time server may set: package clock has times that
// are kept as numbers.
func TestTimers(t *testing.T) {
	found := map[string]bool{}
	root := "../../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && path != root || slices.Contains([]string{"build", "bench", "bin", "python", "internal/verify",
				"internal/cgroup"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for k, line := range strings.Split(string(text), "\n") {
			if timeOfDay.MatchString(line) {
				if found[name] = true; !slices.Contains(ofDay, name) {
					t.Errorf("%s:%d keeps a time of day: %s", name, k+1, strings.TrimSpace(line))
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ofDay {
		if !found[name] {
			t.Errorf("%s keeps no time of day", name)
		}
	}
}
