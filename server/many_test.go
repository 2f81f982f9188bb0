package server_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
)

// readsOfFiles returns how many system calls of this process have read something.
func readsOfFiles(t *testing.T) (n int) {
	t.Helper()
	text := fatal.Value(os.ReadFile("/proc/self/io"))(t)
	at := bytes.Index(text, []byte("syscr: "))
	fatal.Value(fmt.Sscanf(string(text[at:]), "syscr: %d", &n))(t)
	return n
}

// manyCaches are the options of a server of n small caches.
func manyCaches(t testing.TB, n int) server.Options {
	o := options(t, newMemory(4, 8), server.CacheOptions{})
	one := o.Caches[0]
	o.Caches = nil
	for k := range n {
		one.Name = fmt.Sprint("c", k)
		o.Caches = append(o.Caches, one)
	}
	return o
}

// Ensure that the work of a start grows with the number of caches, and not with its square.
func TestStartOfManyCaches(t *testing.T) {
	reads := func(n int) int {
		o := manyCaches(t, n)
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

// Ensure that a round of the janitor asks the kernel for the memory of all caches at once: each answer takes a dozen reads.
func TestJanitorOfManyCaches(t *testing.T) {
	server.SetJanitorPause(t, time.Hour)
	const n = 80
	s, _ := start(t, manyCaches(t, n))
	fewest := math.MaxInt
	for range 5 { // a round that the machine interrupts may ask again
		before := readsOfFiles(t)
		s.Clean()
		fewest = min(fewest, readsOfFiles(t)-before)
	}
	if t.Logf("%d reads of files", fewest); fewest >= n {
		t.Errorf("a round over %d idle caches takes %d reads of files", n, fewest)
	}
}
