package measure

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stocached/stocached/bench/report"
)

const (
	aSecond = "a second"
	bytesMB = "MB"
)

// Idle measures an idle server: how often its threads wait, and its own memory. It has two caches,
// has filled some samples, and has one attached client. Beside it runs a Go program with a timer of
// one second, as the janitor has, and a socket without clients.
func Idle(b *Box, r Records, program []string, window time.Duration) (all []report.Measurement, err error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return nil, err
	}
	h, err := b.serve("idle", b.cache("idle", s), b.cache("idle-2", s))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.end()) }()
	c, err := h.dial("idle")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(c.Close(), err) }()
	if err := fillAll(c, r.order()[:min(r.Samples, 2*fillBatch)]); err != nil {
		return nil, err
	}
	ticks, end, err := launchAll(program, 1, func(int) []string { return []string{"tick"} })
	if err != nil {
		return nil, err
	}
	defer end()
	time.Sleep(3 * time.Second) // until connections are answered and garbage is collected
	pids := []int{h.pid(), ticks[0].command.Process.Pid}
	var before, after [2]int
	for k, pid := range pids {
		if before[k], err = wakeUps(pid); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	time.Sleep(window)
	for k, pid := range pids {
		if after[k], err = wakeUps(pid); err != nil {
			return nil, err
		}
	}
	took := time.Since(began).Seconds()
	wakes := report.Measurement{Case: "server/idle", Note: "voluntary context switches of all threads; one that " +
		"found nothing to do and went to sleep again is one of them"}
	for k, name := range []string{"server", "a timer of one second"} {
		wakes.Subjects = append(wakes.Subjects,
			report.Subject{Name: name, Unit: aSecond, Value: []float64{float64(after[k]-before[k]) / took}})
	}
	own, err := anonymous(h.pid())
	if err != nil {
		return nil, err
	}
	memory := report.Measurement{Case: "server/idle-memory", Note: "RssAnon",
		Subjects: []report.Subject{{Name: "server", Unit: bytesMB, Value: []float64{float64(own) / 1e6}}}}
	return []report.Measurement{wakes, memory}, nil
}

// wakeUps returns how often the threads of a process have waited so far.
func wakeUps(pid int) (sum int, err error) {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(all) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %w", pid, err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			var n int
			if found, _ := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &n); found == 1 {
				sum += n
			}
		}
	}
	return sum, nil
}

// tickWorker is an idle worker with a timer and a socket.
func tickWorker() error {
	dir, err := os.MkdirTemp("", "stocached-bench-tick-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		return err
	}
	defer socket.Close()
	go socket.Accept() //nolint:errcheck // no client connects
	go func() {
		for range time.NewTicker(time.Second).C { //nolint:staticcheck // it ticks until the process ends
		}
	}()
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
	}
	return nil
}
