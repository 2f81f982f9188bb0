package breaker

import (
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that a breaker opens once for all requests, is tried with growing pauses, and forgets them after
// it has been closed for long.
func TestBreaker(t *testing.T) {
	var b Breaker
	var opened atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if b.Open("it is slow") {
				opened.Add(1)
			}
		})
	}
	all.Wait()
	if because, _ := b.State(); opened.Load() != 1 || b.Openings() != 1 || !b.IsOpen() || because != "it is slow" ||
		b.Due() {
		t.Errorf("%d openings, %q", opened.Load(), because)
	}
	pause := func() time.Duration { return time.Until(b.next).Round(firstPause) }
	for want := firstPause; want < 4*longestPause; want *= 2 {
		expect.Equal(t, pause(), min(want, longestPause), "a pause of at least %v", want)
		b.next = time.Now()
		if !b.Due() || b.Due() { // one caller tries
			t.Error("not due, or due twice")
		}
		b.Again("it is still slow")
	}
	b.next = time.Now()
	if !b.Due() {
		t.Error("not due")
	}
	if b.NotTried(); !b.Due() { // another caller tries, at once
		t.Error("not due after a turn without an answer")
	}
	b.Close()
	if b.IsOpen() || b.Due() {
		t.Error("it is open")
	}
	b.Open("again")
	expect.Equal(t, pause(), longestPause, "a pause soon after")
	b.Close()
	b.since = time.Now().Add(-steady - time.Second)
	b.Open("much later")
	expect.Equal(t, pause(), firstPause, "a long pause")
}

// Ensure that C, which has a breaker of its own, makes the same pauses.
func TestPausesOfC(t *testing.T) {
	text := fatal.Value(os.ReadFile("../../cclient/src/protocol/disk.c"))(t)
	for name, want := range map[string]time.Duration{"FIRST_PAUSE_NS": firstPause, "LAST_PAUSE_NS": longestPause,
		"FORGIVEN_NS": steady, "FULL_PAUSE_NS": FullPause} {
		found := regexp.MustCompile(`#define ` + name + ` UINT64_C\((\d+)\)`).FindSubmatch(text)
		if found == nil {
			t.Errorf("disk.c has no %s", name)
			continue
		}
		if got, err := strconv.ParseInt(string(found[1]), 10, 64); err != nil || time.Duration(got) != want {
			t.Errorf("%s is %v in C, %v here", name, time.Duration(got), want)
		}
	}
}
