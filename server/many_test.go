package server_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/stocached/stocached/server"
)

// readsOfFiles returns how many system calls of this process have read something.
func readsOfFiles(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, []byte("syscr: "))
	if _, err := fmt.Sscanf(string(text[at:]), "syscr: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Ensure that the work of a start grows with the number of caches, and not with its square.
func TestStartOfManyCaches(t *testing.T) {
	reads := func(n int) int {
		o := options(t, newMemory(4, 8), server.CacheOptions{})
		one := o.Caches[0]
		o.Caches = nil
		for k := range n {
			one.Name = fmt.Sprint("c", k)
			o.Caches = append(o.Caches, one)
		}
		before := readsOfFiles(t)
		_, stop := start(t, o)
		done := readsOfFiles(t)
		stop()
		return done - before
	}
	few, many := reads(20), reads(80)
	if t.Logf("%d and %d reads of files", few, many); many > 6*few {
		t.Errorf("20 caches take %d reads of files, 80 take %d", few, many)
	}
}
