//go:build faultpoints

package dir_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// A writer that dies at any step leaves at the path the old index or a complete new one.
func TestIndexWriterDies(t *testing.T) {
	for _, point := range []string{"index.created", "index.written", "index.renamed"} {
		root := write(t, map[string]string{"1": "one"})
		wantIndex(t, root, indexed(root), "there was none")
		fatal.If(t, os.WriteFile(filepath.Join(root, "2"), nil, 0o600))
		touch(t, root)
		passed := false
		fault.SetHook(func(at string) {
			if at == point {
				passed = true
				runtime.Goexit() // ends the writer like its death
			}
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			open(root, indexed(root))
		}()
		<-done
		fault.SetHook(nil)
		if !passed {
			t.Fatalf("%s was not passed", point)
		}
		note := "had changed" // the old index is there, and is detected as old
		if point == "index.renamed" {
			note = "read from"
		}
		wantIndex(t, root, indexed(root), note, "1", "2")
		wantIndex(t, root, indexed(root), "read from", "1", "2")
	}
}
