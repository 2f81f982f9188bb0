package client_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/client"
)

const (
	stopVariable = "STOCACHED_TEST_STOP" // the cache of a process that stops in a load
	spinVariable = "STOCACHED_TEST_SPIN"
	stopLasts    = 300 * time.Millisecond
)

var stoppedAt = []int{0, 150}

// stopping is a load that waits for 1 ms. The loads of the samples stoppedAt also stop the process.
func stopping(i int) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		if slices.Contains(stoppedAt, i) {
			if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
				return nil, err
			}
		}
		time.Sleep(time.Millisecond)
		return sample(i, 100), nil
	}
}

// Ensure that a load in which the process is stopped makes no sample a costly one, be it the first load of the cache or
// a later one: it says nothing until another load confirms it.
func TestStoppedInALoad(t *testing.T) {
	const samples = 200
	if path := os.Getenv(stopVariable); path != "" {
		c, err := client.Attach(path, client.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range samples {
			if _, err := c.GetOrLoad(t.Context(), i, stopping(i)); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	c, path := named(t, client.Options{Samples: samples, SampleBytes: 100, Policy: client.PolicyCost})
	p := exec.Command(os.Args[0], "-test.run=^TestStoppedInALoad$")
	p.Env = append(os.Environ(), stopVariable+"="+path)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	for range stoppedAt {
		var status unix.WaitStatus
		if _, err := unix.Wait4(p.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("the process did not stop: %v, %v", status, err)
		}
		time.Sleep(stopLasts)
		if err := p.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	all, known := costs(t, c), 0
	for _, cost := range all {
		if cost > 0 {
			known++
		}
	}
	for _, i := range stoppedAt {
		if all[i] != 0 || known < samples*3/4 {
			t.Errorf("load %d of 1 ms was stopped for %v and costs %v; %d costs are known", i, stopLasts, all[i], known)
		}
	}
	parts := [][]byte{sample(150, 100)}
	if _, err := c.SetParts(150, parts, client.Overwrite, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if cost := costs(t, c)[150]; cost < 800*time.Microsecond || cost > 3*time.Millisecond {
		t.Errorf("after a load of 1 ms it costs %v", cost)
	}
}

// costs returns what the loads of all samples cost.
func costs(t *testing.T, c *client.Cache) []time.Duration {
	t.Helper()
	known := make([]client.Cost, c.Info().Samples)
	if err := c.Inspect().Costs(0, known); err != nil {
		t.Fatal(err)
	}
	var all []time.Duration
	for _, cost := range known {
		all = append(all, time.Duration(cost.Nanoseconds()))
	}
	return all
}

// Ensure that samples that are loaded beside busy processes cost what the others cost.
func TestCostsOfABusyMachine(t *testing.T) {
	if os.Getenv(spinVariable) != "" {
		for os.Getppid() != 1 { //nolint:revive // it spins until it is killed, or its parent has ended
		}
		return
	}
	const computes, each = 20 * time.Millisecond, 7
	c := create(t, client.Options{Samples: 2 * each, SampleBytes: 100, Policy: client.PolicyCost})
	var walls [2]time.Duration
	for busy := range 2 {
		if busy == 1 {
			for range 4 * runtime.NumCPU() {
				p := exec.Command(os.Args[0], "-test.run=^TestCostsOfABusyMachine$")
				p.Env = append(os.Environ(), spinVariable+"=1")
				if err := p.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { p.Process.Kill(); p.Wait() })
			}
		}
		began := time.Now()
		for i := busy * each; i < (busy+1)*each; i++ {
			if _, err := c.GetOrLoad(t.Context(), i, func(context.Context) ([]byte, error) {
				compute(computes)
				return sample(i, 100), nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		walls[busy] = time.Since(began)
	}
	all := costs(t, c)
	alone, beside := all[:each], all[each:]
	slices.Sort(alone)
	slices.Sort(beside)
	t.Logf("%v in %v alone, %v in %v beside busy processes", alone, walls[0], beside, walls[1])
	for what, cost := range map[string]time.Duration{"alone": alone[each/2], "beside busy processes": beside[each/2]} {
		if cost < computes*3/4 || cost > 2*computes { // a cost is off by up to 19 %
			t.Errorf("a load that computes for %v costs %v %s", computes, cost, what)
		}
	}
}

// compute uses a processor for so long, by the clock of the thread.
func compute(d time.Duration) {
	now := func() int64 {
		var at unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
			panic(err)
		}
		return at.Nano()
	}
	for end := now() + d.Nanoseconds(); now() < end; {
	}
}
