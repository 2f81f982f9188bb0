package stress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is a running worker.
type process struct {
	*os.Process
	language string
	record   int           // in the client table; -1: not seen yet
	ended    chan struct{} // closed when it has ended
	err      error         // its exit; valid when ended is closed
	said     func() []byte // its stderr; valid when ended is closed
}

func startWorker(language string, command *exec.Cmd) (*process, error) {
	var stderr bytes.Buffer
	command.Stderr = &stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // ends the worker if the driver is killed
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start a worker in %s: %w", language, err)
	}
	return watch(command.Process, language, command.Wait, stderr.Bytes), nil
}

func watch(running *os.Process, language string, wait func() error, said func() []byte) *process {
	p := &process{Process: running, language: language, record: -1, ended: make(chan struct{}), said: said}
	go func() {
		p.err = wait()
		close(p.ended)
	}()
	return p
}

// forker is a process that forks workers. If an interpreter imported its modules again for each
// worker, it would use more processor time than the workers.
type forker struct {
	Worker
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  *os.File // errors of all workers
}

func startForker(w Worker) (*forker, error) {
	// When the process that forked a worker ends, this process becomes the worker's parent.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of orphans: %w", err)
	}
	f := &forker{Worker: w, command: exec.Command(w.Command[0],
		append(w.Command[1:len(w.Command):len(w.Command)], "fork")...)}
	in, err := f.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := f.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if f.stderr, err = os.CreateTemp("", "stocached-stress-"); err != nil {
		return nil, err
	}
	f.in, f.out = in, bufio.NewReader(out)
	f.command.Stderr = f.stderr
	f.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := f.command.Start(); err != nil {
		f.removeStderr()
		return nil, fmt.Errorf("start the forker of workers in %s: %w", w.Language, err)
	}
	return f, nil
}

func (f *forker) start(args []string) (*process, error) {
	fmt.Fprintln(f.in, strings.Join(args, " ")) // if the forker has ended, no answer comes
	line, err := f.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("fork a worker in %s: %w: %s", f.Language, err, f.said())
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return nil, fmt.Errorf("fork a worker in %s: %w", f.Language, err)
	}
	running, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("fork a worker in %s: %w", f.Language, err)
	}
	wait := func() error {
		state, err := running.Wait()
		if err == nil && !state.Success() {
			err = &exec.ExitError{ProcessState: state}
		}
		return err
	}
	return watch(running, f.Language, wait, f.said), nil
}

func (f *forker) said() []byte {
	text, err := os.ReadFile(f.stderr.Name())
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

// end waits until the forker has ended. The caller has ended its workers.
func (f *forker) end() error {
	defer f.removeStderr()
	return errors.Join(f.in.Close(), f.command.Wait())
}

func (f *forker) removeStderr() {
	f.stderr.Close()
	os.Remove(f.stderr.Name())
}
