package loadtime

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// compute uses the processor for so long, by the clocks of the threads that Go runs it on.
func compute(d time.Duration) {
	for used := time.Duration(0); used < d; {
		thread, began := unix.Gettid(), clock(unix.CLOCK_THREAD_CPUTIME_ID)
		for range 10_000 {
		}
		if now := clock(unix.CLOCK_THREAD_CPUTIME_ID); unix.Gettid() == thread {
			used += now - began
		}
	}
}

const spinVariable = "STOCACHED_TEST_SPIN"

func TestMain(m *testing.M) {
	if os.Getenv(spinVariable) != "" {
		for begin := time.Now(); time.Since(begin) < time.Minute && os.Getppid() != 1; {
		}
		return
	}
	os.Exit(m.Run())
}

// spinGoroutines keeps n goroutines busy until the test ends.
func spinGoroutines(t *testing.T, n int) {
	var end atomic.Bool
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for !end.Load() {
			}
		})
	}
	t.Cleanup(func() { end.Store(true); all.Wait() })
}

// spinProcesses keeps n processes busy until the test ends.
func spinProcesses(t *testing.T, n int) {
	for range n {
		p := exec.Command(os.Args[0])
		p.Env = append(os.Environ(), spinVariable+"=1")
		fatal.If(t, p.Start())
		t.Cleanup(func() { p.Process.Kill(); p.Wait() })
	}
}

// median measures some loads, and returns the middle cost, and the middle wall time.
func median(loads int, load func(ctx context.Context)) (cost, wall time.Duration) {
	var costs, walls []time.Duration
	for range loads {
		began := time.Now()
		costs = append(costs, Measure(context.Background(), load).All)
		walls = append(walls, time.Since(began))
	}
	slices.Sort(costs)
	slices.Sort(walls)
	return costs[loads/2], walls[loads/2]
}

// Ensure that a load costs its processor time, however busy the process and the machine are.
func TestBusy(t *testing.T) {
	const computes = 15 * time.Millisecond // so long that the scheduler of Go interrupts it
	load := func(context.Context) { compute(computes) }
	for name, busy := range map[string]func(t *testing.T){
		"alone": func(t *testing.T) {},
		"beside processes and goroutines": func(t *testing.T) {
			spinProcesses(t, 2*runtime.NumCPU())
			spinGoroutines(t, 4*runtime.GOMAXPROCS(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			busy(t)
			cost, wall := median(5, load)
			t.Logf("%v, in %v of wall time", cost, wall)
			if cost < computes || cost > 2*computes {
				t.Errorf("a load that computes for %v costs %v", computes, cost)
			}
			if name != "alone" && wall < 2*cost {
				t.Logf("%v of wall time: this machine was too idle for this test", wall)
			}
		})
	}
}

// Ensure that a wait for the source counts, also beside busy processes, and that waits in our own
// queues do not.
func TestWaits(t *testing.T) {
	const waits = 30 * time.Millisecond
	near := func(t *testing.T, load func(ctx context.Context)) {
		t.Helper()
		cost, wall := median(9, load)
		t.Logf("%v, in %v of wall time", cost, wall)
		if cost < waits*8/10 || cost > waits*3/2 {
			t.Errorf("a load that waits %v costs %v", waits, cost)
		}
	}
	near(t, func(context.Context) { time.Sleep(waits) })
	near(t, func(context.Context) { // as a read of a slow disk
		deadline := unix.NsecToTimespec(int64(waits))
		unix.Nanosleep(&deadline, nil)
	})
	near(t, func(ctx context.Context) {
		began := time.Now()
		time.Sleep(2 * waits)
		Queued(ctx, time.Since(began))
		time.Sleep(waits)
	})
	near(t, func(ctx context.Context) {
		began := time.Now()
		time.Sleep(waits / 10)
		Elsewhere(ctx, Cost{All: waits}, time.Since(began))
	})
	var withins []time.Duration
	near(t, func(ctx context.Context) {
		withins = append(withins, Measure(ctx, func(context.Context) { compute(waits); time.Sleep(waits) }).All)
		time.Sleep(waits)
	})
	slices.Sort(withins)
	if within := withins[len(withins)/2]; within < waits*12/10 || within > 3*waits { // one of its two parts costs waits
		t.Errorf("a load within a load costs %v", within)
	}
	spinProcesses(t, 2*runtime.NumCPU())
	near(t, func(context.Context) { time.Sleep(waits) })
	Queued(context.Background(), waits) // not measured: ignored
}

// Ensure that a load that panics leaves the goroutine as it was.
func TestPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic of a load is lost")
		}
	}()
	Measure(context.Background(), func(context.Context) { panic("no") })
}

func TestCost(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		what                        string
		wall, thread, delay, others time.Duration
		queued, want                time.Duration
	}{
		{"alone", 10 * ms, 10 * ms, 0, 0, 0, 10 * ms},
		{"waits", 30 * ms, 10 * ms, 0, 0, 0, 30 * ms},
		{"another process has the processor", 40 * ms, 10 * ms, 30 * ms, 0, 0, 10 * ms},
		{"others have both processors", 100 * ms, 10 * ms, 0, 190 * ms, 0, 10 * ms},
		{"others have one of two", 30 * ms, 10 * ms, 0, 16 * ms, 0, 20 * ms},
		{"the processors are shared", 202 * ms, 9 * ms, 10 * ms, 190 * ms, 0, 9 * ms},
		{"clocks that disagree", 10 * ms, 11 * ms, 0, -1, 0, 11 * ms},
		{"a queue", 40 * ms, 10 * ms, 0, 0, 20 * ms, 20 * ms},
		{"a queue beside others", 40 * ms, 10 * ms, 4 * ms, 0, 20 * ms, 18 * ms},
		{"only a queue", 40 * ms, ms, 0, 0, 40 * ms, ms},
	} {
		expect.Equal(t, (usage{c.wall, c.thread, c.thread + c.others, c.delay}).waits(c.queued, 2)+c.thread, c.want, "%s", c.what)
	}
}

func BenchmarkMeasure(b *testing.B) {
	for range b.N {
		Measure(context.Background(), func(context.Context) {})
	}
}

// Ensure that a read that was faster than its device, because it made up for a late timer, costs what the device takes.
func TestQueueBelowZero(t *testing.T) {
	cost := Measure(t.Context(), func(ctx context.Context) { Queued(ctx, -time.Second) })
	if cost.All < 900*time.Millisecond || cost.Source < 900*time.Millisecond || cost.All > 5*time.Second {
		t.Errorf("a read that is one second ahead costs %v", cost)
	}
}
