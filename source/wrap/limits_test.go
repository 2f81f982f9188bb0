package wrap_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest/faults"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sys/unix"
)

// watched counts running reads, and keeps the order in which they began.
type watched struct {
	source.Source
	running, most atomic.Int64
	mu            sync.Mutex
	order         []int
}

func (w *watched) Read(ctx context.Context, i int, dst []byte) (int, error) {
	now := w.running.Add(1)
	defer w.running.Add(-1)
	w.mu.Lock()
	w.most.Store(max(w.most.Load(), now))
	w.order = append(w.order, i)
	w.mu.Unlock()
	time.Sleep(time.Second)
	return w.Source.Read(ctx, i, dst)
}

// Ensure that n reads run and no more, and that they start in the order of their calls.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := records(t, 30, 24)
		w := &watched{Source: s}
		c := fatal.Value(wrap.Concurrency(w, 3))(t)
		begun := time.Now()
		var readers sync.WaitGroup
		for i := range 30 {
			time.Sleep(time.Millisecond)
			readers.Go(func() { expect.Works(readOne(c, i))(t) })
		}
		readers.Wait()
		if w.most.Load() != 3 || time.Since(begun) > 10*time.Second+10*time.Millisecond {
			t.Errorf("%d at a time, %v in all", w.most.Load(), time.Since(begun))
		}
		for k, i := range w.order {
			if k != i {
				t.Errorf("out of turn: %v", w.order)
				break
			}
		}
	})
	for _, n := range []int{0, -1} {
		if _, err := wrap.Concurrency(nil, n); !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// Ensure that a wait for a running read ends with the context and with Close, and that no capacity
// is lost.
func TestWaitingEnds(t *testing.T) {
	for name, wrapper := range map[string]func(source.Source) (source.Source, error){
		"concurrency": func(s source.Source) (source.Source, error) { return wrap.Concurrency(s, 1) },
		"rate": func(s source.Source) (source.Source, error) {
			return wrap.Rate(s, wrap.RateOptions{Latency: time.Microsecond})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			inner, _ := records(t, 6, 24)
			stuck := make(chan struct{})
			f := faults.Wrap(inner, faults.Rule{Stuck: stuck, Times: 1})
			s := fatal.Value(wrapper(f))(t)
			first := make(chan error)
			go func() { _, err := readOne(s, 0); first <- err }()
			synctest.Wait()
			cause := errors.New("had enough")
			ctx, cancel := context.WithCancelCause(context.Background())
			second, third := make(chan error), make(chan error)
			go func() { _, err := s.Read(ctx, 1, make([]byte, 24)); second <- err }()
			synctest.Wait()
			cancel(cause)
			if err := <-second; !errors.Is(err, cause) {
				t.Errorf("%s: %v", name, err)
			}
			go func() { _, err := readOne(s, 2); third <- err }()
			synctest.Wait()
			close(stuck)
			if a, b := <-first, <-third; a != nil || b != nil || f.Reads(1) != 0 {
				t.Errorf("%s: %v, %v", name, a, b)
			}

			again := make(chan struct{})
			f.Set(faults.Rule{Stuck: again, Times: 1})
			go func() { _, err := readOne(s, 0); first <- err }()
			synctest.Wait()
			go func() { _, err := readOne(s, 1); second <- err }()
			synctest.Wait()
			expect.NoError(t, s.Close())
			if err := <-second; !errors.Is(err, source.ErrClosed) {
				t.Errorf("%s, closed: %v", name, err)
			}
			close(again)
			if err := <-first; !errors.Is(err, source.ErrClosed) {
				t.Errorf("%s, closed while reading: %v", name, err)
			}
		})
	}
}

// Ensure, by the clock of the test, that reads take exactly the time of the options: with one
// reader, many readers, many heads, and blocks.
func TestRate(t *testing.T) {
	const samples, size = 60, 150_528
	seek, transfer := 8*time.Millisecond, 1003520*time.Nanosecond // for 150,528 bytes at 150 MB/s
	for name, c := range map[string]struct {
		o       wrap.RateOptions
		readers int
		blocks  bool
		want    time.Duration // for all samples
	}{
		"a disk, one reader": {wrap.RateOptions{BytesPerSecond: 150e6, Latency: seek}, 1, false,
			samples * (seek + transfer)},
		"a disk, many readers": {wrap.RateOptions{BytesPerSecond: 150e6, Latency: seek}, 12, false,
			samples * (seek + transfer)},
		"a disk, in blocks": {wrap.RateOptions{BytesPerSecond: 150e6, Latency: seek}, 1, true,
			samples/20*seek + samples*transfer},
		"latency alone": {wrap.RateOptions{Latency: seek}, 4, false, samples * seek},
		"a network, two readers": {wrap.RateOptions{BytesPerSecond: 150e6, Latency: seek, Heads: 12}, 2, false,
			seek/2*samples + transfer*samples/2 + transfer/2},
		"a network, line full": {wrap.RateOptions{BytesPerSecond: 150e6, Latency: seek, Heads: 12}, 12, false,
			seek + samples*transfer},
		"a line alone": {wrap.RateOptions{BytesPerSecond: 150e6}, 1, false, samples * transfer},
	} {
		synctest.Test(t, func(t *testing.T) {
			inner, _ := records(t, samples, size)
			s := fatal.Value(wrap.Rate(blocky{inner, 20}, c.o))(t)
			var next atomic.Int64
			var readers sync.WaitGroup
			begun := time.Now()
			for range c.readers {
				readers.Go(func() {
					for {
						i := int(next.Add(1) - 1)
						var err error
						switch {
						case c.blocks && i < samples/20:
							_, err = readBlock(s, i)
						case !c.blocks && i < samples:
							_, err = readOne(s, i)
						default:
							return
						}
						expect.NoError(t, err)
					}
				})
			}
			readers.Wait()
			if took := time.Since(begun); (took - c.want).Abs() > c.want/50 {
				t.Errorf("%s: %v, want %v", name, took, c.want)
			}
		})
	}
	for _, o := range []wrap.RateOptions{{}, {Heads: 3}, {BytesPerSecond: -1}, {Latency: -1}, {Latency: 1, Heads: -1}} {
		if _, err := wrap.Rate(nil, o); !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Ensure that reads of invalid indices cost no time, and that a read whose context ends during the
// wait returns its cause.
func TestRateOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, _ := records(t, 4, 24)
		s := fatal.Value(wrap.Rate(inner, wrap.RateOptions{Latency: time.Hour}))(t)
		begun := time.Now()
		if _, err := s.Read(context.Background(), 4, nil); !errors.Is(err, source.ErrIndex) || time.Since(begun) != 0 {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.Read(ctx, 1, make([]byte, 24)); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		// The disk is busy for the rest of the hour, and then for another one.
		if _, err := readOne(s, 1); err != nil || time.Since(begun) != 2*time.Hour {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// Ensure that a read costs its own time, and not its waits for other reads.
func TestCostsOfLimits(t *testing.T) {
	for name, c := range map[string]struct {
		wrap func(source.Source) (source.Source, error)
		want time.Duration
	}{
		"concurrency": {func(s source.Source) (source.Source, error) { return wrap.Concurrency(&watched{Source: s}, 1) },
			time.Second},
		"rate": {func(s source.Source) (source.Source, error) {
			return wrap.Rate(s, wrap.RateOptions{BytesPerSecond: 24, Latency: time.Second})
		}, 2 * time.Second},
		"heads": {func(s source.Source) (source.Source, error) {
			return wrap.Rate(s, wrap.RateOptions{BytesPerSecond: 24, Latency: time.Second, Heads: 4})
		}, 2 * time.Second},
		"a slow source": {func(s source.Source) (source.Source, error) {
			return wrap.Rate(faults.Wrap(s, faults.Rule{Delay: 3 * time.Second}), wrap.RateOptions{Latency: time.Second})
		}, 3 * time.Second},
		"retry": {func(s source.Source) (source.Source, error) {
			failing := faults.Wrap(s, faults.Rule{Err: unix.EIO, Times: 4})
			return wrap.Retry(&watched{Source: failing}, wrap.RetryOptions{}, nil)
		}, 0},
		"read ahead": {func(s source.Source) (source.Source, error) {
			a, err := wrap.ReadAhead(&watched{Source: s}, wrap.ReadAheadOptions{})
			if err == nil {
				a.Prefetch([]int{0, 1, 2, 3})
			}
			return a, err
		}, time.Second},
		"blocks": {func(s source.Source) (source.Source, error) {
			return wrap.ReadAhead(blocky{&watched{Source: s}, 4}, wrap.ReadAheadOptions{Blocks: true})
		}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, _ := records(t, 4, 24)
				s := fatal.Value(c.wrap(inner))(t)
				var costs [4]time.Duration
				var readers sync.WaitGroup
				for i := range 4 {
					readers.Go(func() {
						costs[i] = loadtime.Measure(t.Context(), func(ctx context.Context) {
							expect.Works(s.Read(ctx, i, make([]byte, 24)))(t)
						}).All
					})
				}
				readers.Wait()
				s.Close()
				for i, cost := range costs {
					want := c.want
					if name == "retry" { // the tries that failed took their time too
						want = cost.Round(time.Second)
						if want < time.Second || want > 5*time.Second {
							t.Errorf("sample %d costs %v", i, cost)
						}
					}
					if cost < want-want/5 || cost > want+want/5 {
						t.Errorf("sample %d costs %v, want %v", i, cost, want)
					}
				}
			})
		})
	}
}

// Ensure that a read costs what the device takes for it, also if it is shorter because the last timer was late.
func TestRateLateCost(t *testing.T) {
	inner, _ := records(t, 6, 24)
	s := wrap.LateRate(inner, wrap.RateOptions{Latency: 6 * time.Millisecond}, 10*time.Millisecond)
	cost := loadtime.Measure(t.Context(), func(ctx context.Context) {
		expect.Works(s.Read(ctx, 0, make([]byte, 24)))(t)
	})
	if cost.Source < 5*time.Millisecond {
		t.Errorf("a read of 6 ms costs %v", cost)
	}
}
