package measure

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/stocached/stocached/bench/report"

	"golang.org/x/sys/unix"
)

// Subject is one way to do it.
type Subject struct {
	Name    string
	Samples int          // in a run
	Setup   func() error // before each run, not timed; may be nil
	Run     func() error
	Clean   func() error // after each run, not timed; may be nil
}

// Alternate runs the subjects in turn: one round that is not measured, to warm up, and then runs of them. Every other round goes backwards, so that a drift of the
// machine meets all alike.
func Alternate(name, size string, runs int, subjects ...Subject) (report.Measurement, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection in the middle of a run would be ours or theirs by chance
	m := report.Measurement{Case: name, Size: size}
	for _, s := range subjects {
		m.Subjects = append(m.Subjects, report.Subject{Name: s.Name, Samples: s.Samples})
	}
	for round := -1; round < runs; round++ {
		for k := range subjects {
			if round%2 != 0 {
				k = len(subjects) - 1 - k
			}
			wall, cpu, faults, err := subjects[k].once()
			if err != nil {
				return m, fmt.Errorf("%s, %s: %w", name, subjects[k].Name, err)
			}
			if round < 0 {
				continue
			}
			n := float64(subjects[k].Samples)
			s := &m.Subjects[k]
			s.Value, s.CPU, s.Faults = append(s.Value, wall/n), append(s.CPU, cpu/n), append(s.Faults, faults/n)
		}
		runtime.GC()
	}
	return m, nil
}

// once returns seconds, processor seconds and minor page faults of one run.
func (s *Subject) once() (wall, cpu, faults float64, err error) {
	if s.Setup != nil {
		if err := s.Setup(); err != nil {
			return 0, 0, 0, err
		}
	}
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		return 0, 0, 0, err
	}
	start := time.Now()
	err = s.Run()
	wall = time.Since(start).Seconds()
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		return 0, 0, 0, err
	}
	if s.Clean != nil && err == nil {
		err = s.Clean()
	}
	return wall, seconds(&after) - seconds(&before), float64(after.Minflt - before.Minflt), err
}

func seconds(u *unix.Rusage) float64 {
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
