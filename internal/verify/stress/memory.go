package stress

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/cgroup"
	"github.com/stocached/stocached/shm"
)

// Memory runs many workers that fill caches larger than the memory of their cgroup. They must fill
// the memory up to its floor, and the kernel must kill none of them.
type Memory struct {
	Limit   uint64 // limit of the cgroup, in bytes
	Rounds  int
	Seed    uint64
	Workers []Worker // all run at the same time
	Log     io.Writer
}

// MemoryReport is the result of Memory.
type MemoryReport struct {
	Stored uint64 // samples published
	Full   uint64 // sets that were refused
	Peak   uint64 // the most memory that the cgroup had, in bytes
	Took   time.Duration
}

const (
	memoryTimeout = 5 * time.Minute // limit of one round
	refusedEnough = 100             // sets for each worker, after which a round is over
)

// Run runs all rounds. An error means that something does not hold; one that wraps cgroup.ErrNone,
// that there can be no cgroup.
func (m Memory) Run() (report MemoryReport, err error) {
	group, err := cgroup.New(m.Limit)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	begun := time.Now()
	for round := range m.Rounds {
		if err := m.round(group, round, &report); err != nil {
			return report, fmt.Errorf("%d MiB, round %d: %w", m.Limit>>20, round, err)
		}
	}
	report.Peak, report.Took = group.Peak(), time.Since(begun).Round(time.Millisecond)
	return report, nil
}

// round fills one cache. Its control part and this process are outside of the cgroup.
func (m Memory) round(group *cgroup.Group, number int, report *MemoryReport) error {
	dir, err := os.MkdirTemp("/dev/shm", "stocached-stress-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	samples := m.Limit / driveSampleBytes * 5 / 4
	o := shm.Options{Name: "memory", Dir: dir, Samples: samples, SampleBytes: driveSampleBytes, ClientRecords: 64}
	if number%2 == 1 {
		o.Variable, o.Limit = true, 32<<20+samples*driveSampleBytes
	}
	seg, err := shm.Create(o)
	if err != nil {
		return err
	}
	defer seg.Close()
	c, err := cache.Attach(seg, cache.Options{Label: "stress driver"})
	if err != nil {
		return err
	}
	defer c.Close()
	workers, err := m.start(group, filepath.Join(dir, "memory"), int(samples), number)
	if err == nil {
		err = m.wait(group, workers, c)
	}
	for _, p := range workers {
		p.Kill()
		<-p.ended
	}
	s, statsErr := c.Stats()
	report.Stored, report.Full = report.Stored+s.Stored, report.Full+s.Full
	if err = errors.Join(err, statsErr); err != nil {
		return err
	}
	if _, err := c.Recover(); err != nil {
		return err
	}
	if v, err := c.Verify(0, int(samples)); err != nil || v.Corrupt != 0 {
		return fmt.Errorf("%d of %d READY samples are corrupt, the first is %d (%v)", v.Corrupt, v.Checked, v.Bad, err)
	}
	if m.Log != nil {
		fmt.Fprintf(m.Log, "%d MiB, round %d: %d MiB are cached, peak %d MiB\n", m.Limit>>20, number,
			s.ReadyBytes>>20, group.Peak()>>20)
	}
	return nil
}

func (m Memory) start(group *cgroup.Group, path string, samples, round int) (started []*process, err error) {
	for k, w := range m.Workers {
		args := append(w.Command[1:len(w.Command):len(w.Command)], path, fmt.Sprint(samples),
			fmt.Sprint(2*int(memoryTimeout.Seconds())), fmt.Sprint(m.Seed+uint64(100*round+k)))
		p, err := startWorker(w.Language, group.Command(w.Command[0], args...))
		if err != nil {
			return started, err
		}
		started = append(started, p)
	}
	return started, nil
}

// wait waits until every worker has a record, and enough sets were refused. It returns an error if
// a worker ends, or after memoryTimeout.
func (m Memory) wait(group *cgroup.Group, workers []*process, c *cache.Cache) error {
	for deadline := time.Now().Add(memoryTimeout); ; time.Sleep(20 * time.Millisecond) {
		for _, p := range workers {
			select {
			case <-p.ended:
				kills, err := group.Kills()
				return errors.Join(fmt.Errorf("a worker in %s ended by itself (%v), the kernel has killed %d: %s",
					p.language, p.err, kills, p.said()), err)
			default:
			}
		}
		s, err := c.Stats()
		if err != nil {
			return err
		}
		if s.Full >= uint64(refusedEnough*len(workers)) && s.ClientsLive == uint64(len(workers))+1 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %d sets were refused, %d clients are live, %d samples stored",
				memoryTimeout, s.Full, s.ClientsLive, s.Stored)
		}
	}
}
