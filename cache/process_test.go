package cache_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/stress"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// A child process runs a script of the commands below, one a line on stdin, and answers each with a
// line.
const childVariable = "STOCACHED_TEST_CHILD"

// TestMain lets this binary be such a child, or a stress worker.
func TestMain(m *testing.M) {
	switch path := os.Getenv(childVariable); {
	case len(os.Args) == 6 && os.Args[1] == "work":
		samples, _ := strconv.Atoi(os.Args[3])
		seconds, _ := strconv.Atoi(os.Args[4])
		seed, _ := strconv.ParseUint(os.Args[5], 10, 64)
		os.Exit(stress.Work(os.Args[2], samples, time.Duration(seconds)*time.Second, seed))
	case path != "":
		script(path, os.Stdin, os.Stdout)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// script attaches, prints "attached", and runs commands until stdin ends. It exits without Close,
// like a program that returns from main.
func script(path string, in io.Reader, out io.Writer) {
	seg, err := shm.Open(path, shm.OpenOptions{})
	if err != nil {
		fmt.Fprintln(out, "error", err)
		return
	}
	c, err := cache.Attach(seg, cache.Options{Next: invented})
	if err != nil {
		fmt.Fprintln(out, "error", err)
		return
	}
	fmt.Fprintln(out, "attached", c.Owner())
	var claim *cache.Claim
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var i, version, n int
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		fmt.Sscan(rest, &i, &version, &n)
		data := func() []byte { return payload(i, version, n) }
		switch verb {
		case "set", "overwrite", "wait":
			r, err := c.Set(i, data(), map[string]cache.Flags{"overwrite": cache.Overwrite, "wait": cache.Wait}[verb])
			fmt.Fprintln(out, r, err)
		case "claim": // and write all of it
			var r cache.Result
			if claim, r, err = c.Claim(i, n, 0); claim != nil {
				claim.WriteAt(data(), 0)
			}
			fmt.Fprintln(out, r, err)
		case "abort":
			fmt.Fprintln(out, claim.Abort())
		case "publish":
			fmt.Fprintln(out, claim.Publish())
		case "clear":
			r, err := c.Clear(context.Background())
			fmt.Fprintln(out, r, err)
		case "churn": // i: seed, version: samples, n: milliseconds
			hits, stored, err := churn(c, uint64(i), version, time.Duration(n)*time.Millisecond)
			fmt.Fprintln(out, hits, stored, err)
		case "recover":
			n, err := c.Recover()
			fmt.Fprintln(out, n, err)
		case "spawn": // a process that outlives this one and has its data descriptor
			cmd := exec.Command("/bin/sleep", "60")
			cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(seg.FD()), "data")}
			cmd.Stdout = nil
			fmt.Fprintln(out, cmd.Start(), cmd.Process.Pid)
		default:
			fmt.Fprintln(out, "unknown command", verb)
		}
	}
}

var plans atomic.Uint64

// invented is a plan that changes, for the policy planned: any sample may be read next.
func invented(sample, _ uint64) uint64 { return 1 + policy.Random(plans.Add(1)/1000, sample)%1000 }

// churn gets random samples and sets those that miss, for a time. It returns the numbers of hits and
// of stored samples, and the first error.
func churn(c *cache.Cache, seed uint64, samples int, lasts time.Duration) (hits, stored int, err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	dst := make([]byte, churnBytes)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		for range 100 {
			i := rng.IntN(samples)
			if rng.IntN(4) == 0 { // some samples are read much more often than others
				i = rng.IntN(80)
			}
			whole := payload(i, 0, churnBytes)
			switch _, hit, err := c.Get(i, dst); {
			case err != nil:
				return hits, stored, err
			case hit && string(dst) != string(whole):
				return hits, stored, fmt.Errorf("a copy of sample %d has other bytes", i)
			case hit:
				hits++
			default:
				r, err := c.SetLoaded(i, [][]byte{whole}, 0, time.Duration(1+i%1000+rng.IntN(20))*time.Microsecond)
				if err != nil {
					return hits, stored, err
				}
				if r == cache.Stored {
					stored++
				}
			}
		}
	}
	return hits, stored, nil
}

const churnBytes = 3000

// child is a process that runs a script.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	owner int
	gone  bool
}

// start starts a child and waits until it is attached, or has died of its fault before that. The
// child ends with the test.
func start(t testing.TB, path, fault string) *child {
	t.Helper()
	return startIn(t, path, fault, 0)
}

// startIn starts a child in new namespaces of the kernel, with CLONE_NEW... flags.
func startIn(t testing.TB, path, fault string, namespaces uintptr) *child {
	t.Helper()
	exe := fatal.Value(os.Executable())(t)
	c := &child{t: t, cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), childVariable+"="+path)
	if fault != "" {
		c.cmd.Env = append(c.cmd.Env, "STOCACHED_FAULT="+fault)
	}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces}
	in := fatal.Value(c.cmd.StdinPipe())(t)
	out := fatal.Value(c.cmd.StdoutPipe())(t)
	if err := c.cmd.Start(); namespaces != 0 && errors.Is(err, syscall.EPERM) {
		t.Skip("needs root, to make namespaces:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	t.Cleanup(c.kill)
	line, _ := c.out.ReadString('\n')
	if _, err := fmt.Sscanf(line, "attached %d", &c.owner); err != nil && line != "" {
		t.Fatalf("a child said %q", line)
	}
	return c
}

// tell sends a command without waiting for its answer.
func (c *child) tell(format string, args ...any) {
	fmt.Fprintf(c.in, format+"\n", args...)
}

// hear waits for the next answer; "" when the child has died.
func (c *child) hear() string {
	line, _ := c.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n")
}

// ask sends a command and checks its answer.
func (c *child) ask(want, format string, args ...any) {
	c.t.Helper()
	c.tell(format, args...)
	fatal.Equal(c.t, c.hear(), want, "a child's answer to %q", fmt.Sprintf(format, args...))
}

// kill ends the child by SIGKILL, if it still runs, and waits until the kernel has freed its locks.
func (c *child) kill() {
	if !c.gone {
		c.gone = true
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

// died waits for a child that kills itself at its fault point. Any other end fails the test.
func (c *child) died() {
	c.t.Helper()
	c.gone = true
	c.in.Close() // a child that did not reach the point ends here
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		c.t.Fatalf("a child did not die at its fault point: %v", err)
	}
}

// stopped waits until the child has stopped.
func (c *child) stopped() {
	c.t.Helper()
	fatal.Until(c.t, "a child stops at its fault point", func() bool {
		text := fatal.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid)))(c.t)
		return strings.HasPrefix(string(text[strings.LastIndexByte(string(text), ')'):]), ") T ")
	})
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	fatal.If(c.t, c.cmd.Process.Signal(s))
}
