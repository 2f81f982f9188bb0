package cli

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// childVariable makes the test binary a program that uses a cache: see child.
const childVariable = "STOCACHED_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVariable); mode == "main" {
		os.Exit(Run(os.Args[1:], os.Stdout, os.Stderr))
	} else if mode != "" {
		if err := child(mode, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Setenv("TERM", "xterm") // not that of the machine that tests
	os.Exit(m.Run())
}

// child is a program that uses a cache until its standard input ends. "use PATH" gets samples again
// and again; half of them it has stored, half are missing. "claim PATH" leaves a sample claimed.
// "unnamed" makes a cache without a name. It prints "ready" when the test may go on. The programs
// of servedChildren are clients of a server. In the mode "main" the test binary is stocached
// itself.
func child(mode string, args []string) error {
	if serve, ok := servedChildren[mode]; ok {
		return serve(args)
	}
	var seg *shm.Segment
	var err error
	if mode == "disk" {
		d, err := stocclient.OpenDisk(args[0], gcDisk)
		if err != nil {
			return err
		}
		if r, err := d.Set(3, content(3, gcDisk.SampleBytes)); r != stocclient.Stored || err != nil {
			return fmt.Errorf("set: %v, %w", r, err)
		}
		fmt.Println("ready")
		_, err = io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, d.Close())
	}
	if mode == "unnamed" {
		seg, err = shm.Create(shm.Options{Samples: 10, SampleBytes: 100})
	} else {
		seg, err = shm.Open(args[0], shm.OpenOptions{})
	}
	if err != nil {
		return err
	}
	defer seg.Close()
	c, err := cache.Attach(seg, cache.Options{Label: "child " + mode})
	if err != nil {
		return err
	}
	defer c.Close()
	if mode == "claim" {
		if _, r, err := c.Claim(3, int(seg.Header.SampleBytes), 0); err != nil || r != cache.Stored {
			return fmt.Errorf("claim: %v, %w", r, err)
		}
	}
	n := int(seg.Samples)
	for i := 0; i < n/2; i++ {
		if _, err := c.Set(i, content(i, int(seg.Header.SampleBytes)), 0); err != nil {
			return err
		}
	}
	var stop sync.WaitGroup
	done := make(chan struct{})
	stop.Go(func() {
		for i := 0; mode == "use"; i = (i + 1) % (n / 2) {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Microsecond):
			}
			for _, k := range []int{i, n/2 + i} { // a hit and a miss
				if _, _, err := c.View(k); err != nil {
					panic(err)
				}
			}
		}
	})
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	close(done)
	stop.Wait()
	return err
}

// content is the bytes of a sample.
func content(i, n int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, n) }

// program returns stocached as a process.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"=main")
	return cmd
}

// process is a running child.
type process struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// start runs a child until it is ready; it is killed when the test ends.
func start(t *testing.T, mode string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"="+mode)
	return startChild(t, cmd)
}

// startChild is start for a child that is made already.
func startChild(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd}
	p.Stderr = os.Stderr
	var err error
	if p.stdin, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout := fatal.Value(p.StdoutPipe())(t)
	fatal.If(t, p.Start())
	t.Cleanup(p.kill)
	p.stdout = bufio.NewReader(stdout)
	p.ready(t)
	return p
}

// ready waits until a child says that it is ready.
func (p *process) ready(t *testing.T) {
	t.Helper()
	if line, err := p.stdout.ReadString('\n'); line != "ready\n" {
		t.Fatalf("child %q: %q, %v", p.Args, line, err)
	}
}

// end lets the child end by itself.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	fatal.If(t, p.Wait())
}

// kill kills the child by SIGKILL and waits; a child that has ended is left alone.
func (p *process) kill() {
	if p.ProcessState == nil {
		p.Process.Kill()
		p.Wait()
	}
}

// pause stops a process, and waits until all its threads have stopped: for a moment after the
// signal, a server may still answer.
func pause(t *testing.T, p *exec.Cmd) {
	t.Helper()
	fatal.If(t, p.Process.Signal(unix.SIGSTOP))
	const stopped = 5 // the kernel's CLD_STOPPED
	var how unix.Siginfo
	var err error
	for ok := false; !ok; ok = !errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, p.Process.Pid, &how, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil || how.Code != stopped {
		t.Fatalf("it did not stop: code %d, %v", how.Code, err)
	}
}

// cli runs a command line and returns the exit code and what it printed.
func cli(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Run(args, &out, &err)
	return code, out.String(), err.String()
}

// ok runs a command line that must succeed, and returns what it printed on stdout.
func ok(t testing.TB, args ...string) string {
	t.Helper()
	code, stdout, stderr := cli(t, args...)
	if code != exitOK {
		t.Fatalf("stocached %s: exit %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// fails runs a command line that must end with a code and a message that contains all of texts.
func fails(t testing.TB, want int, texts []string, args ...string) {
	t.Helper()
	code, stdout, stderr := cli(t, args...)
	if code != want {
		t.Errorf("stocached %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	contains(t, stderr, texts...)
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// decode reads JSON that a command printed.
func decode[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

type jsonObject = map[string]any

// wantFields compares fields of a JSON object; numbers are float64.
func wantFields(t testing.TB, got, want jsonObject) {
	t.Helper()
	for field, value := range want {
		have, there := got[field]
		if n, isInt := value.(int); isInt {
			value = float64(n)
		}
		if !there || fmt.Sprint(have) != fmt.Sprint(value) {
			t.Errorf("%s is %v (there: %v), want %v", field, have, there, value)
		}
	}
}

// newCache makes a cache named "test" in its own directory, and returns the directory and the path.
func newCache(t testing.TB, o shm.Options) (dir, path string) {
	t.Helper()
	o.Name, o.Dir = "test", tmpfs.Folder(t)
	seg := fatal.Value(shm.Create(o))(t)
	fatal.If(t, seg.Close())
	return o.Dir, filepath.Join(o.Dir, o.Name)
}

// small returns options of a simple cache: 10 samples of 100 bytes, 6 slots.
func small() shm.Options { return shm.Options{Samples: 10, Slots: 6, SampleBytes: 100} }

// newClient attaches to a cache as programs do, until the test ends.
func newClient(t testing.TB, path string) *cache.Cache {
	t.Helper()
	seg := fatal.Value(shm.Open(path, shm.OpenOptions{}))(t)
	c := fatal.Value(cache.Attach(seg, cache.Options{Label: "test client"}))(t)
	t.Cleanup(func() {
		c.Close()
		seg.Close()
	})
	return c
}

// store stores samples, which must be new.
func store(t testing.TB, c *cache.Cache, samples ...int) {
	t.Helper()
	for _, i := range samples {
		fatal.Gives(c.Set(i, content(i, 100), 0))(t, cache.Stored, i)
	}
}

// snapshot returns all of a file that a command could change: its bytes, its pages, and the holders
// of its locks.
func snapshot(t testing.TB, path string) string {
	t.Helper()
	f := fatal.Value(os.Open(path))(t)
	defer f.Close()
	var st unix.Stat_t
	fatal.If(t, unix.Fstat(int(f.Fd()), &st))
	sum := sha256.New()
	fatal.Value(io.Copy(sum, f))(t)
	return fmt.Sprintf("%x, %d bytes, %d blocks, modified %v", sum.Sum(nil), st.Size, st.Blocks, st.Mtim)
}

// openTerminal opens both ends of a pseudo-terminal of 100 columns and 16 lines.
func openTerminal(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	fatal.If(t, err)
	fd := int(master.Fd())
	fatal.If(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	fatal.If(t, err)
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 16, Col: 100}))
	return master, slave
}

// terminal opens a pseudo-terminal. It returns the program's end, and a function that closes it and
// returns the output, once.
func terminal(t testing.TB) (*os.File, func() string) {
	t.Helper()
	master, slave := openTerminal(t)
	written := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(master) // EIO when the other end is closed
		written <- string(b)
	}()
	return slave, func() string {
		slave.Close()
		text := <-written
		master.Close()
		return text
	}
}

// lines splits an output into lines.
func lines(text string) []string {
	return slices.Collect(strings.Lines(text))
}
