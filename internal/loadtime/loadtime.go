// Package loadtime measures what the load of a sample costs, for caches that keep the samples that
// cost most.
package loadtime

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// meter is the measurement of one load.
type meter struct {
	mu        sync.Mutex // protects the fields below
	apart     usage      // loads within this one
	queued    time.Duration
	elsewhere Cost
}

// Cost is what a load costs: processor time, and waits for the source.
type Cost struct{ All, Source time.Duration }

// Part returns a part of a cost.
func (c Cost) Part(part float64) Cost {
	return Cost{time.Duration(float64(c.All) * part), time.Duration(float64(c.Source) * part)}
}

// usage is time that passed, and how it was used.
type usage struct {
	wall    time.Duration
	thread  time.Duration // processor time of the thread
	process time.Duration // and of all threads
	delay   time.Duration // in which the thread was ready to run and did not run
}

func (u usage) plus(v usage) usage {
	return usage{u.wall + v.wall, u.thread + v.thread, u.process + v.process, u.delay + v.delay}
}

func (u usage) minus(v usage) usage {
	return usage{u.wall - v.wall, u.thread - v.thread, u.process - v.process, u.delay - v.delay}
}

type key struct{}

// of returns the meter of the load to which a context belongs; nil: none measures it.
func of(ctx context.Context) *meter {
	m, _ := ctx.Value(key{}).(*meter)
	return m
}

// Measure calls load and returns what it cost, at least 1 ns of All: its processor time, and its waits for
// the source, which are also Source. These do not count:
//
//   - Waits in queues of ours, which wrappers of sources report by Queued and Elsewhere.
//   - The time in which the thread was ready to run and another process had the processor. The
//     kernel knows it (schedstat), if the goroutine stays on its thread.
//   - The time in which other goroutines had all processors of this process. No interface tells it:
//     a goroutine that waits for a processor looks like one that waits for a disk. In that time, the
//     process used GOMAXPROCS processors. So its processor time beside this thread's, divided by
//     GOMAXPROCS, is the most that it can be, and all of it is subtracted. A wait beside busy
//     goroutines thus counts for less: work that has a processor anyway fills it.
//
// Simpler ways fail. Beside 16 busy goroutines on 2 processors, a load that computes for 15 ms took
// 286 ms of wall time, of which the kernel knows little. Processor time alone knows no source. The
// work of goroutines that load starts counts as work beside it.
//
// A measurement takes 12 us. So only caches that need costs, and sources that read ahead for a cache
// that may need them, call Measure. A load within a load is measured apart, and does not count for
// the outer one.
func Measure(ctx context.Context, load func(ctx context.Context)) Cost {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stat, err := unix.Open("/proc/thread-self/schedstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(stat)
	}
	m := &meter{}
	before, began := now(stat)
	load(context.WithValue(ctx, key{}, m))
	after, ended := now(stat)
	used := after.minus(before)
	used.wall = ended.Sub(began)
	if outer := of(ctx); outer != nil {
		outer.mu.Lock()
		outer.apart = outer.apart.plus(used)
		outer.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	used = used.minus(m.apart)
	source := used.waits(m.queued, runtime.GOMAXPROCS(0))
	return Cost{max(used.thread+source+m.elsewhere.All, 1), source + m.elsewhere.Source}
}

// MeasureIf calls load. It returns what Measure returns if the cost is needed, and 0 otherwise.
func MeasureIf(needed bool, ctx context.Context, load func(ctx context.Context)) Cost {
	if needed {
		return Measure(ctx, load)
	}
	load(ctx)
	return Cost{}
}

// IsMeasured says whether a context belongs to a load that is measured.
func IsMeasured(ctx context.Context) bool { return of(ctx) != nil }

// waits computes how long a load that used so much waited for its source. It was in queues for a part of the time.
func (u usage) waits(queued time.Duration, processors int) time.Duration {
	// What others used, and the delay, are those of the whole time. The rest has its part of them.
	outside := max(u.wall-queued, 0)
	part := min(float64(outside)/float64(max(u.wall, 1)), 1) // a queue below 0 makes the wait longer than the wall time
	// Threads of other processes slow the other threads down as much as this one. A short
	// measurement tells that badly, so it counts as if the thread had run for 1 ms more.
	ran := float64(max(u.thread, 0) + time.Millisecond)
	slower := (ran + float64(max(u.delay, 0))) / ran
	occupied := float64(max(u.process-u.thread, 0)) * slower / float64(processors)
	occupied += occupied / 4 // it is that much too short where the kernel slows the others down more
	return max(outside-u.thread-time.Duration((float64(u.delay)+occupied)*part), 0)
}

// quick is far longer than it takes to ask for all times.
const quick = 50 * time.Microsecond

// now returns the usage since the thread and the process began, without wall, and the time. A thread often loses its
// processor when it asks for its times. Then they are not those of one moment, and now asks again.
func now(stat int) (u usage, at time.Time) {
	for range 4 {
		at = time.Now()
		u = usage{process: clock(unix.CLOCK_PROCESS_CPUTIME_ID), delay: runDelay(stat),
			thread: clock(unix.CLOCK_THREAD_CPUTIME_ID)}
		if time.Since(at) < quick {
			break
		}
	}
	return u, at
}

// clock returns the processor time of this thread or process.
func clock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// runDelay returns for how long the thread was ready to run and did not run; 0 if the kernel does
// not say.
func runDelay(stat int) time.Duration {
	var text [64]byte
	n, err := unix.Pread(stat, text[:], 0)
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[:n]))
	if len(fields) < 2 {
		return 0
	}
	delay, _ := strconv.ParseInt(fields[1], 10, 64) // 0 after an error
	return time.Duration(delay)
}

// Queued reports that a load waited so long in a queue of ours. It ignores contexts that Measure did
// not make.
func Queued(ctx context.Context, waited time.Duration) {
	Elsewhere(ctx, Cost{}, waited)
}

// Elsewhere reports that another goroutine did a part of a load at this cost, and that the load
// waited so long for it.
func Elsewhere(ctx context.Context, cost Cost, waited time.Duration) {
	if m := of(ctx); m != nil {
		m.mu.Lock()
		m.queued += waited
		m.elsewhere.All += cost.All
		m.elsewhere.Source += cost.Source
		m.mu.Unlock()
	}
}
