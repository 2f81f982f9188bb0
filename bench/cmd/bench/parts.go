package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/stocached/stocached/bench/measure"
	"github.com/stocached/stocached/bench/report"
)

// part is the unit that is run and kept.
type part struct {
	name, what string
	python     bool // it needs Python
	run        func(r *runner, emit func(report.Measurement)) error
}

var clientParts = []part{
	{"c", "C: view, get, gather, set", false, (*runner).inC},
	{"go", "Go: View, Get, Gather, Set", false, (*runner).inGo},
	{"python", "Python: views, copies, batches, put", true, (*runner).inPython},
	{"epoch", "the first epoch, which fills the cache", true, (*runner).epoch},
	{"lifecycle", "create, and attach to 100 million samples, in the three languages", true, (*runner).lifecycle},
	{"memory", "memory while filling, and of many workers", true, (*runner).memory},
	{"hits", "hits with 1, 2 and 4 processes in the three languages, perf c2c", true, (*runner).hits},
}

var orderParts = []part{{"order", "the order of an epoch in C", false, (*runner).orders}}

var loaderParts = []part{{"batches", "Go: batches, and loads that sleep", false, (*runner).batches}}

// part returns the measurements of a part: kept ones with -resume, else new ones, which it keeps.
func (r *runner) part(p *part) ([]report.Measurement, error) {
	kept := filepath.Join(r.state, fmt.Sprintf("part-%s%s%s.json", p.name, map[bool]string{true: "-quick"}[r.quick],
		map[bool]string{true: "-peers"}[r.peers]))
	var all []report.Measurement
	if r.resume {
		if text, err := os.ReadFile(kept); err == nil {
			if err := json.Unmarshal(text, &all); err != nil {
				return nil, fmt.Errorf("%s: %w; run without -resume", kept, err)
			}
			fmt.Fprintf(os.Stderr, "== %s: kept\n", p.name)
			return all, nil
		}
	}
	began := time.Now()
	fmt.Fprintf(os.Stderr, "== %s: %s\n", p.name, p.what)
	err := p.run(r, func(m report.Measurement) {
		fmt.Fprintf(os.Stderr, "   %4.0f s  %s %s %s\n", time.Since(began).Seconds(), m.Case, m.Size, m.Missing)
		all = append(all, m)
	})
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return all, os.WriteFile(kept, text, 0o644)
}

// run runs a measuring program and passes on its measurements.
func (r *runner) run(emit func(report.Measurement), name string, arguments ...string) error {
	c := exec.Command(name, arguments...)
	c.Dir = r.root
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var errorText bytes.Buffer // shown if the program fails
	c.Stderr = &errorText
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	lines := make(chan report.Measurement)
	done := make(chan error, 1)
	go func() {
		defer close(lines)
		done <- report.Stream(out, func(m report.Measurement) { lines <- m },
			func(line string) { errorText.WriteString(line + "\n") })
	}()
	for m := range lines {
		emit(m)
	}
	if err := errors.Join(<-done, c.Wait()); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, &errorText)
	}
	return nil
}

func (r *runner) inC(emit func(report.Measurement)) error {
	arguments := []string{"samples", strconv.Itoa(r.runs), r.dir}
	if r.quick {
		arguments = append(arguments, "quick")
	}
	if err := r.run(emit, r.program(), arguments...); err != nil {
		return err
	}
	arguments[0] = "views"
	return r.run(emit, r.program()+"-static", arguments...)
}

func (r *runner) inGo(emit func(report.Measurement)) error {
	for _, z := range measure.Sizes(r.quick) {
		if err := measure.Reads(z, r.dir, r.runs, emit); err != nil {
			return err
		}
		if err := measure.Stores(z, r.dir, r.runs, emit); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) orders(emit func(report.Measurement)) error {
	arguments := []string{"orders", strconv.Itoa(r.runs), r.dir}
	if r.quick {
		arguments = append(arguments, "quick")
	}
	return r.run(emit, r.program(), arguments...)
}

func (r *runner) batches(emit func(report.Measurement)) error {
	for _, z := range measure.BatchSizes(r.quick) {
		if err := measure.Batches(z, r.dir, r.runs, emit); err != nil {
			return err
		}
	}
	return measure.SleepingLoads(r.quick, r.runs, emit)
}

// pythonRun runs some parts of bench/python.
func (r *runner) pythonRun(emit func(report.Measurement), only, huge string) error {
	arguments := []string{"bench/python", "run", "--runs", strconv.Itoa(r.runs), "--folder", r.dir,
		"--loops", r.loops(), "--huge", huge, "--only", only}
	if r.quick {
		arguments = append(arguments, "--quick")
	}
	if r.peers {
		arguments = append(arguments, "--peers")
	}
	return r.run(emit, r.python, arguments...)
}

func (r *runner) inPython(emit func(report.Measurement)) error {
	return r.pythonRun(emit, "reads,puts", "")
}
func (r *runner) epoch(emit func(report.Measurement)) error { return r.pythonRun(emit, "epochs", "") }

func (r *runner) lifecycle(emit func(report.Measurement)) (err error) {
	m, err := measure.Create(r.dir, r.runs)
	if err != nil {
		return err
	}
	emit(m)
	huge, remove, err := measure.Huge(r.dir, r.quick)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if m, err = measure.Attach(huge, r.runs); err != nil {
		return err
	}
	emit(m)
	if err := r.run(emit, r.program(), "lifecycle", strconv.Itoa(r.runs), r.dir, huge); err != nil {
		return err
	}
	return r.pythonRun(emit, "lifecycle", huge)
}

func (r *runner) memory(emit func(report.Measurement)) error {
	z := measure.Sizes(r.quick)[0]
	m, err := measure.Filling(z, r.dir)
	if err != nil {
		return err
	}
	emit(m)
	path, remove, err := measure.Filled(z, r.dir)
	if err != nil {
		return err
	}
	defer remove() //nolint:errcheck // a file that stays fails nothing
	if m, err = measure.Workers("go", z, path, r.worker(), 1, 2, 4, 8); err != nil {
		return err
	}
	emit(m)
	if m, err = measure.Workers("python", z, path, r.pythonWorker(), 4); err != nil {
		return err
	}
	emit(m)
	return nil
}

func (r *runner) hits(emit func(report.Measurement)) error {
	z := measure.Sizes(r.quick)[0]
	path, remove, err := measure.Filled(z, r.dir)
	if err != nil {
		return err
	}
	defer remove() //nolint:errcheck // a file that stays fails nothing
	window := 200 * time.Millisecond
	if r.quick {
		window = 20 * time.Millisecond
	}
	programs := map[string][]string{"go": r.worker(), "c": {r.program()}, "python": r.pythonWorker()}
	for _, name := range []string{"go", "c", "python"} {
		m, err := measure.Hits(name, z, path, programs[name], r.runs, window)
		if err != nil {
			return err
		}
		emit(m)
	}
	m, err := measure.C2C(z, path, programs["c"], r.state)
	if err != nil {
		return err
	}
	emit(m)
	return nil
}

// worker returns the command of this program as a worker.
func (r *runner) worker() []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, "worker"}
}

func (r *runner) pythonWorker() []string {
	return []string{r.python, filepath.Join(r.root, "bench", "python")}
}
