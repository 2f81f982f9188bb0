package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// link is a network whose time is that of a synctest bubble: each answer takes the latency, and then
// its part of the bandwidth, in the order of the requests.
type link struct {
	latency   time.Duration
	bandwidth float64 // bytes a second
	most      int     // requests at a time that the server answers; more are refused. 0: no limit

	mu     sync.Mutex
	inside int
	free   time.Time // when the link is free
}

func (l *link) read(bytes int) error {
	l.mu.Lock()
	l.inside++
	refused := l.most > 0 && l.inside > l.most
	l.mu.Unlock()
	defer func() { l.mu.Lock(); l.inside--; l.mu.Unlock() }()
	time.Sleep(l.latency)
	if refused {
		return fmt.Errorf("%w: slow down", source.ErrUnavailable)
	}
	l.mu.Lock()
	begin := time.Now()
	if l.free.After(begin) {
		begin = l.free
	}
	l.free = begin.Add(time.Duration(float64(bytes) / l.bandwidth * 1e9))
	wait := time.Until(l.free)
	l.mu.Unlock()
	time.Sleep(wait)
	return nil
}

// rates returns the bytes a second that callers read through a window, in each of so many seconds.
func rates(l *link, w *window, callers, bytes, seconds int) []float64 {
	read := make([]float64, seconds)
	begun := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for time.Since(begun) < time.Duration(seconds)*time.Second {
				if w.enter(context.Background()) != nil {
					return
				}
				entered := time.Now()
				err := l.read(bytes)
				w.leave(entered, bytes, err)
				if second := int(time.Since(begun) / time.Second); err == nil && second < seconds {
					mu.Lock()
					read[second] += float64(bytes)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return read
}

func fixed(size int) *window {
	w := newWindow(size)
	w.size = float64(size)
	return w
}

// Ensure that within 5 seconds the window finds a width that gives at least 0.85 of the best fixed one. It
// keeps this width, which is not much more than the link needs.
func TestWindowFindsTheLink(t *testing.T) {
	for _, c := range []struct {
		name    string
		latency time.Duration
		mbit    float64
		bytes   int
		most    int
		widest  float64
	}{
		{"20 ms, 1 Gbit/s, 110 KiB", 20 * time.Millisecond, 1000, 110 << 10, 0, 64},
		{"20 ms, 100 Mbit/s, 110 KiB", 20 * time.Millisecond, 100, 110 << 10, 0, 16},
		{"2 ms, 1 Gbit/s, 1 MiB", 2 * time.Millisecond, 1000, 1 << 20, 0, 12},
		{"80 ms, 10 Gbit/s, 110 KiB", 80 * time.Millisecond, 10000, 110 << 10, 0, 64},
		{"a server that refuses more than 10 at a time", 20 * time.Millisecond, 1000, 110 << 10, 10, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newLink := func() *link { return &link{latency: c.latency, bandwidth: c.mbit * 125e3, most: c.most} }
				best := 0.0
				for _, size := range []int{1, 2, 4, 8, 10, 16, 32, 64} {
					if c.most > 0 && size > c.most {
						break
					}
					best = max(best, rates(newLink(), fixed(size), 64, c.bytes, 4)[3])
				}
				w := newWindow(64)
				got := rates(newLink(), w, 64, c.bytes, 20)
				for second, rate := range got[5:] {
					if rate < 0.85*best {
						t.Errorf("second %d: %.1f MB/s, the best fixed window gives %.1f", second+5, rate/1e6, best/1e6)
					}
				}
				if w.size > c.widest {
					t.Errorf("a window of %.1f, more than %.0f", w.size, c.widest)
				}
			})
		})
	}
}

// Ensure that a server which answers within a few ms gets all requests at once: no caller waits for the window.
func TestWindowOfANearbyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(64)
		rates(&link{latency: 200 * time.Microsecond, bandwidth: 1e9}, w, 16, 110<<10, 3)
		if w.size < 16 {
			t.Errorf("a window of %.1f for 16 callers", w.size)
		}
	})
}

// Ensure that a window with many requests in a queue shrinks, without a word of the server.
func TestWindowShrinksWithALongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fixed(64)
		rates(&link{latency: 20 * time.Millisecond, bandwidth: 12.5e6}, w, 80, 110<<10, 9) // 9 s: nothing is measured again
		if w.size > 56 || w.resume != 0 {
			t.Errorf("a window of %.1f, of which a link of 100 Mbit/s needs 3", w.size)
		}
	})
}

// Ensure that a link which becomes slower for good is no queue for ever: the fastest answers are measured again.
func TestWindowOfALinkThatBecomesSlower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{latency: 20 * time.Millisecond, bandwidth: 125e6}
		w := newWindow(64)
		rates(l, w, 64, 110<<10, 5)
		l.latency = 100 * time.Millisecond
		rates(l, w, 64, 110<<10, 60)
		slow := &link{latency: l.latency, bandwidth: l.bandwidth}
		best := rates(slow, fixed(64), 64, 110<<10, 4)[3]
		// The window is halved for a round now and then.
		if got := slices.Max(rates(l, w, 64, 110<<10, 5)); got < 0.85*best {
			t.Errorf("%.1f MB/s with a window of %.1f, the widest gives %.1f", got/1e6, w.size, best/1e6)
		}
	})
}

// slow is a Driver whose answers take a second.
type slow struct{ Driver }

func (slow) Get(_ context.Context, _ string, _ int64, n int, _ string) (Answer, error) {
	time.Sleep(time.Second)
	return Answer{Bytes: int64(n), Body: io.NopCloser(bytes.NewReader(make([]byte, n)))}, nil
}

// Ensure that no second request begins while the server says that it is busy, and that they begin again later.
func TestNoSecondRequestToABusyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		o := Options{}
		fatal.If(t, o.check())
		s := New(slow{}, o)
		for range recentReads {
			s.hedge.took(n, 10*time.Millisecond)
		}
		fatal.If(t, s.window.enter(t.Context()))
		s.window.leave(time.Now(), n, source.ErrUnavailable)
		for _, want := range []uint64{0, 1} {
			fatal.If(t, s.ReadAt(t.Context(), "records", stamp(n, ""), make([]byte, n), 0))
			expect.Equal(t, s.traffic.Hedged.Load(), want, "second requests")
			time.Sleep(ceilingLasts)
		}
	})
}

// Ensure that a wait for the window ends with its context, and that the turn is not lost.
func TestWindowWaitEnds(t *testing.T) {
	w := fixed(1)
	fatal.If(t, w.enter(t.Context()))
	cause := errors.New("had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	expect.Error(t, w.enter(ctx), cause)
	w.leave(time.Now(), 1, nil)
	if err := w.enter(t.Context()); err != nil || w.inside != 1 || len(w.waiting) != 0 {
		t.Errorf("%v, %d inside, %d waiting", err, w.inside, len(w.waiting))
	}
}
