package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// slowServed is a server over n records that take some time each.
func slowServed(t *testing.T, n int) *served {
	t.Helper()
	s := configureServed(t, fmt.Sprintf("size: all, source: {kind: raw, path: records, sample_bytes: %d, limits: "+
		"{latency: 20ms}}", servedBytes))
	s.write(n)
	s.start()
	return s
}

// stop stops the server until the returned function is called.
func (s *served) stop() (resume func()) {
	s.t.Helper()
	pause(s.t, s.process)
	process := s.process.Process
	resume = sync.OnceFunc(func() { process.Signal(syscall.SIGCONT) })
	s.t.Cleanup(resume)
	return resume
}

// Ensure that many goroutines can fetch at once through one handle: those beyond the limits of the
// connection wait, by number of requests and by number of indices.
func TestManyFetchesThroughOneHandle(t *testing.T) {
	t.Parallel()
	const n = 300
	s := slowServed(t, n)
	c := s.dial()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if i < 8 { // together more indices than may be under way
				if err := c.Fill(context.Background(), slices.Repeat([]int{i}, control.MaxIndices)); err != nil {
					t.Errorf("sample %d: %v", i, err)
				}
				return
			}
			if data, err := c.GetOrFetch(context.Background(), i); err != nil || !slices.Equal(data, servedRecord(i)) {
				t.Errorf("sample %d: %v", i, err)
			}
		})
	}
	all.Wait()
	expect.Equal(t, ready(t, c.Cache), n, "samples are there")
}

// Ensure that a load that takes longer than the timeout is waited for, as its server answers others.
func TestALoadMayTakeLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	s := configureServed(t, fmt.Sprintf("size: all, source: {kind: raw, path: records, sample_bytes: %d, limits: "+
		"{latency: 5s}}", servedBytes))
	s.write(3)
	s.start()
	c := s.dialFor(servedName, time.Second)
	if data, err := c.GetOrFetch(t.Context(), 2); err != nil || !slices.Equal(data, servedRecord(2)) {
		t.Error(err)
	}
}

// Ensure that no fetch is refused because of earlier prefetches.
func TestFetchAfterManyPrefetches(t *testing.T) {
	t.Parallel()
	const n = 300
	s := slowServed(t, n)
	c := s.dial()
	for i := range n {
		fatal.Value(c.Prefetch(context.Background(), []int{i}))(t)
	}
	wantFetch(t, c, rand.Perm(n)[:20])
}

// Ensure that a server that is stopped during a large request blocks no caller beyond its context,
// and that the rest of the request is never sent.
func TestLargeRequestToAStoppedServer(t *testing.T) {
	t.Parallel()
	s := slowServed(t, 100)
	c := s.dial()
	wantFetch(t, c, []int{99})
	resume := s.stop()
	var all sync.WaitGroup
	for i := range 8 { // half a MiB each: more than a socket buffer
		all.Go(func() {
			for range 3 {
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				began := time.Now()
				if err := c.Fill(ctx, slices.Repeat([]int{i}, control.MaxIndices)); !errors.Is(err,
					context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				cancel()
			}
		})
	}
	all.Wait()
	wantFetch(t, c, []int{99}) // a hit
	resume()
	wantFetch(t, c, between(50, 60))
	if got := ready(t, c.Cache); got > 15 {
		t.Errorf("%d samples are cached: requests were sent without a caller", got)
	}
	began := time.Now()
	defer s.stop()()
	go c.Fill(context.Background(), slices.Repeat([]int{0, 1}, control.MaxIndices))
	time.Sleep(100 * time.Millisecond)
	if err := c.Close(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("close: %v after %v", err, time.Since(began))
	}
}

// Ensure that goroutines that need a connection wait for a server together, each no longer than its
// context. A server that does not answer, or too late, counts as none.
func TestGoroutinesWaitTogether(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		s := slowServed(t, 100)
		const timeout = 2 * time.Second
		c := s.dialFor("pets", timeout)
		s.kill()
		if stopped {
			s.start()
			s.stop()
		}
		began := time.Now()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				_, err := c.GetOrFetch(context.Background(), i)
				if !errors.Is(err, stocclient.ErrNoServer) || errors.Is(err, stocclient.ErrTimeout) != stopped ||
					stopped == strings.Contains(err.Error(), "stocached serve -c") {
					t.Error(err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		impatient := time.Now()
		_, err := c.GetOrFetch(ctx, 50)
		if took := time.Since(impatient); !errors.Is(err, context.DeadlineExceeded) || took >= timeout {
			t.Errorf("stopped %v: %v after %v", stopped, err, took)
		}
		cancel()
		all.Wait()
		if took := time.Since(began); took > 4*timeout { // one after the other they would wait 8 times
			t.Errorf("stopped %v: they waited %v", stopped, took)
		}
	}
}
