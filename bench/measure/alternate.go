package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stocached/stocached/bench/report"

	"golang.org/x/sys/unix"
)

// Subject is one of the things that are compared.
type Subject struct {
	Name    string
	Samples int          // in a run
	Setup   func() error // before each run, not timed; may be nil
	Run     func() error
	Clean   func() error // after each run, not timed; may be nil

	Helper func() int // process whose processor time is added, such as a server; nil: none
	Times  *[]float64 // Latencies only: Run writes the seconds of each of its samples here
}

// Alternate runs the subjects in turn: one round to warm up, which is not measured, and then runs
// rounds. Every other round goes backwards, so that a drift of the machine affects all subjects
// alike.
func Alternate(name, size string, runs int, subjects ...Subject) (report.Measurement, error) {
	m := report.Measurement{Case: name, Size: size}
	for _, s := range subjects {
		m.Subjects = append(m.Subjects, report.Subject{Name: s.Name, Samples: s.Samples})
	}
	err := rounds(runs, len(subjects), func(k int, measured bool) error {
		wall, cpu, faults, err := subjects[k].once()
		if err != nil {
			return fmt.Errorf("%s, %s: %w", name, subjects[k].Name, err)
		}
		if measured {
			n := float64(subjects[k].Samples)
			s := &m.Subjects[k]
			s.Value, s.CPU, s.Faults = append(s.Value, wall/n), append(s.CPU, cpu/n), append(s.Faults, faults/n)
		}
		return nil
	})
	return m, err
}

// rounds calls one for each of n subjects in turn, runs times, after a round to warm up.
func rounds(runs, n int, one func(k int, measured bool) error) error {
	// a collection in the middle of a run would be ours or theirs by chance
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for round := -1; round < runs; round++ {
		for _, k := range forthAndBack(n, round) {
			if err := one(k, round >= 0); err != nil {
				return err
			}
		}
		runtime.GC()
	}
	return nil
}

// forthAndBack returns the order of a round: every other one goes backwards.
func forthAndBack(n, round int) []int {
	order := make([]int, n)
	for k := range order {
		order[k] = k
		if round%2 != 0 {
			order[k] = n - 1 - k
		}
	}
	return order
}

// Latencies is Alternate for the time of each single sample. It returns two measurements, NAME-p50
// and NAME-p99, of the percentiles of each run.
func Latencies(name, size string, runs int, subjects ...Subject) ([]report.Measurement, error) {
	percentiles := []struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p99", 0.99}}
	all := make([]report.Measurement, len(percentiles))
	for p := range all {
		all[p] = report.Measurement{Case: name + "-" + percentiles[p].name, Size: size}
		for _, s := range subjects {
			all[p].Subjects = append(all[p].Subjects, report.Subject{Name: s.Name, Samples: s.Samples})
		}
	}
	err := rounds(runs, len(subjects), func(k int, measured bool) error {
		s := &subjects[k]
		*s.Times = (*s.Times)[:0]
		_, cpu, faults, err := s.once()
		if err == nil && len(*s.Times) != s.Samples {
			err = fmt.Errorf("%d times of %d samples", len(*s.Times), s.Samples)
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", name, s.Name, err)
		}
		if !measured {
			return nil
		}
		times, n := slices.Sorted(slices.Values(*s.Times)), float64(s.Samples)
		for p := range all {
			to := &all[p].Subjects[k]
			to.Value, to.CPU, to.Faults = append(to.Value, times[int(percentiles[p].at*n)]), append(to.CPU, cpu/n),
				append(to.Faults, faults/n)
		}
		return nil
	})
	return all, err
}

// once returns the seconds, processor seconds and minor page faults of one run.
func (s *Subject) once() (wall, cpu, faults float64, err error) {
	if s.Setup != nil {
		if err := s.Setup(); err != nil {
			return 0, 0, 0, err
		}
	}
	helped := 0.0
	if s.Helper != nil {
		if helped, err = processorTime(s.Helper()); err != nil {
			return 0, 0, 0, err
		}
	}
	var before, after, programsBefore, programs unix.Rusage
	use := func(self, children *unix.Rusage) error {
		return errors.Join(unix.Getrusage(unix.RUSAGE_SELF, self), unix.Getrusage(unix.RUSAGE_CHILDREN, children))
	}
	if err := use(&before, &programsBefore); err != nil {
		return 0, 0, 0, err
	}
	start := time.Now()
	err = s.Run()
	wall = time.Since(start).Seconds()
	if err := use(&after, &programs); err != nil {
		return 0, 0, 0, err
	}
	if s.Helper != nil && err == nil {
		var now float64
		now, err = processorTime(s.Helper())
		cpu = now - helped
	}
	if s.Clean != nil && err == nil {
		err = s.Clean()
	}
	cpu += seconds(&after) - seconds(&before) + seconds(&programs) - seconds(&programsBefore) // that Run has waited for
	return wall, cpu, float64(after.Minflt - before.Minflt), err
}

func seconds(u *unix.Rusage) float64 {
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// processorTime returns the processor seconds of another process and its children so far.
func processorTime(pid int) (total float64, err error) {
	all := fmt.Sprint(pid)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		children, _ := os.ReadFile(path) // a thread may have ended
		all += " " + string(children)
	}
	for _, field := range strings.Fields(all) {
		one, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		var t unix.Timespec
		if err := unix.ClockGettime(int32(^one)<<3|2, &t); err != nil { // the clock of clock_getcpuclockid
			return 0, fmt.Errorf("processor time of process %d: %w", one, err)
		}
		total += float64(t.Nano()) / 1e9
	}
	return total, err
}
