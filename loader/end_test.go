package loader_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"

	"go.uber.org/goleak"
)

func exit() { runtime.Goexit() }

// After any end of a loop at any moment no goroutine is left, and the next loop continues after the
// last delivered batch.
func TestEndsAnyTime(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	const samples, size = 60, 4
	d := newDataset(samples, 50)
	d.jitter = true
	c := newCache(t, d, samples)
	fill(t, c, d, func(i int) bool { return i%3 == 0 })
	l := open(t, cached(t, c, d), loader.Options{BatchSize: size, Order: shuffled(samples), Workers: 3, Ahead: 3})
	indices := wanted(t, shuffled(samples), 0, order.Shard{})
	for round := range 300 {
		fatal.If(t, l.SetEpoch(0))
		var got []int
		for len(got) < samples {
			ctx, cancel := context.WithCancel(context.Background())
			if round%3 == 0 { // at any moment
				time.AfterFunc(time.Duration(rand.IntN(800))*time.Microsecond, cancel)
			}
			for b, err := range l.Batches(ctx) {
				if errors.Is(err, context.Canceled) {
					break
				}
				fatal.If(t, err)
				got = append(got, b.Indices()...)
				b.Release()
				if round%3 == 1 && rand.IntN(4) == 0 {
					break
				}
				if round%3 == 2 && rand.IntN(4) == 0 {
					cancel() // and the loop notices
				}
			}
			cancel()
		}
		if !slices.Equal(got, indices) {
			t.Fatalf("round %d: %v, want %v", round, got, indices)
		}
	}
	goleak.VerifyNone(t, leaks)
}

// The end of the context ends inflight loads, and its cause is the error.
func TestContextEndsLoads(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	d := newDataset(20, 10)
	d.hold(t, 6)
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 4})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the training is over")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	n := 0
	var last error
	for b, err := range l.Batches(ctx) {
		if last = err; err == nil {
			n++
		}
		b.Release() // harmless after an error
	}
	if n != 1 || !errors.Is(last, why) {
		t.Error(n, last)
	}
	goleak.VerifyNone(t, leaks)
	for _, err := range l.Batches(ctx) {
		expect.Error(t, err, why)
	}
}

// A closed cache is an error, and does not end the process.
func TestCacheClosedUnderneath(t *testing.T) {
	d := newDataset(100, 10)
	c := newCache(t, d, 100)
	fill(t, c, d, func(int) bool { return true })
	l := open(t, cached(t, c, d), loader.Options{BatchSize: 4, Ahead: 1})
	n := 0
	var last error
	for b, err := range l.Batches(t.Context()) {
		if last = err; err != nil {
			break
		}
		wantBatch(t, d, b, slices.Clone(b.Indices()))
		if n++; n == 3 {
			c.Close()
		}
	}
	if !errors.Is(last, client.ErrClosed) || n < 3 || n > 6 {
		t.Error(n, last)
	}
}

// Only one loop runs at a time, and Resume and SetEpoch work only between loops.
func TestOneLoopAtATime(t *testing.T) {
	d := newDataset(20, 10)
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 4})
	for b, err := range l.Batches(t.Context()) {
		fatal.If(t, err)
		b.Release()
		for _, err := range l.Batches(t.Context()) {
			expect.Error(t, err, loader.ErrRunning)
		}
		expect.Error(t, l.SetEpoch(3), loader.ErrRunning)
		expect.Error(t, l.Resume(l.State()), loader.ErrRunning)
		break
	}
	if err := l.SetEpoch(3); err != nil || l.State().Epoch != 3 || l.State().Position != 0 {
		t.Error(err, l.State())
	}
}
