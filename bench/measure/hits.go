package measure

import (
	"runtime"
	"strconv"
	"time"

	"github.com/stocached/stocached/bench/report"

	"golang.org/x/sys/unix"
)

// Hits measures views without copies by 1, 2 and 4 processes, each pinned to a core (0 or 1). If a
// hit wrote a shared cache line, two processes on two cores would not be twice as fast as one.
// Values are seconds a view of all processes together. "1 process" is the mean of each core alone.
func Hits(name string, z Size, path string, program []string, runs int, window time.Duration) (report.Measurement,
	error) {
	m := report.Measurement{Case: "hits/" + name, Size: z.Name}
	if runtime.NumCPU() < 2 {
		m.Missing = "needs two cores"
		return m, nil
	}
	workers, end, err := launchAll(program, 4, func(k int) []string {
		return []string{"hits", path, strconv.Itoa(k % 2), strconv.Itoa(k + 1)}
	})
	if err != nil {
		return m, err
	}
	defer end()
	m.Subjects = []report.Subject{{Name: "1 process"}, {Name: "2 processes"}, {Name: "4 processes"}}
	for round := -1; round < runs; round++ {
		var rates, cpus [4]float64 // of worker 0, of worker 1, of both, of all four
		for _, k := range forthAndBack(4, round) {
			var err error
			if rates[k], cpus[k], err = together([][]*process{workers[:1], workers[1:2], workers[:2], workers}[k],
				window); err != nil {
				return m, err
			}
		}
		if round < 0 {
			continue
		}
		for k, rate := range []float64{(rates[0] + rates[1]) / 2, rates[2], rates[3]} {
			s := &m.Subjects[k]
			s.Samples = int(rate * window.Seconds())
			s.Value = append(s.Value, 1/rate)
			s.CPU = append(s.CPU, []float64{(cpus[0] + cpus[1]) / 2, cpus[2], cpus[3]}[k])
		}
	}
	return m, nil
}

// together lets workers view for a while, all at the same time. It returns views a second and
// processor seconds a view.
func together(workers []*process, window time.Duration) (rate, cpu float64, err error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, 0, err
	}
	start := now.Nano() + int64(20*time.Millisecond) // enough time to tell all workers
	for _, w := range workers {
		if err := w.tell("go %d %d", start, window.Nanoseconds()); err != nil {
			return 0, 0, err
		}
	}
	views, used := 0.0, 0.0
	for _, w := range workers {
		var v, took, c float64
		if err := w.answer("%g %g %g", &v, &took, &c); err != nil {
			return 0, 0, err
		}
		rate += v / took * 1e9
		views += v
		used += c
	}
	return rate, used / 1e9 / views, nil
}
