package measure

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// process is a worker process, in any language. It attaches, prints "ready", and then answers each
// line with one line, until its input ends:
//
//	PROGRAM... hits PATH CORE SEED
//	    "go START NANOSECONDS": views from START (CLOCK_MONOTONIC) on, for this time;
//	    answers "VIEWS NANOSECONDS CPU-NANOSECONDS"
//	PROGRAM... memory PATH
//	    reads every sample before "ready"; "measure": answers the bytes of its share (PSS) of the segment
//	PROGRAM... read KIND ADDRESS SAMPLES BYTES SEED
//	    like hits, with samples that are copied; not pinned to a core
//	PROGRAM... asked SOURCE BYTES
//	    uses a socket instead: see asked.go
//	PROGRAM... tick
//	    an idle program with a timer of one second and a socket
//
// worker.go is such a program; bench/python/worker.py knows hits and memory, c/worker.c hits only.
type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

// launch starts a worker. It does not wait for "ready", the worker's first answer.
func launch(program []string, arguments ...string) (*process, error) {
	p := &process{command: exec.Command(program[0], append(program[1:len(program):len(program)], arguments...)...)}
	p.command.Stderr = os.Stderr
	var err error
	if p.in, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	return p, p.command.Start()
}

func (p *process) tell(format string, values ...any) error {
	_, err := fmt.Fprintf(p.in, format+"\n", values...)
	return err
}

func (p *process) answer(format string, values ...any) error {
	if !p.out.Scan() {
		return fmt.Errorf("worker %s ended without an answer: %w", strings.Join(p.command.Args, " "), p.command.Wait())
	}
	if _, err := fmt.Sscanf(p.out.Text(), format, values...); err != nil {
		return fmt.Errorf("worker %s answered %q: %w", strings.Join(p.command.Args, " "), p.out.Text(), err)
	}
	return nil
}

func (p *process) end() {
	p.in.Close()
	p.command.Wait() //nolint:errcheck // its exit status says nothing new
}

// launchAll starts n workers and waits until all of them are ready.
func launchAll(program []string, n int, arguments func(k int) []string) ([]*process, func(), error) {
	var all []*process
	endAll := func() {
		for _, p := range all {
			p.end()
		}
	}
	for k := range n {
		p, err := launch(program, arguments(k)...)
		if err != nil {
			endAll()
			return nil, nil, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.answer("ready"); err != nil {
			endAll()
			return nil, nil, err
		}
	}
	return all, endAll, nil
}
