package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// topRun is stocached top on a terminal.
type topRun struct {
	*emulator
	cmd    *exec.Cmd
	master *os.File
	ended  chan error
}

// startTop starts it with flags and with settings of the environment.
func startTop(t *testing.T, environment []string, flags ...string) *topRun {
	t.Helper()
	master, slave := openTerminal(t)
	r := &topRun{emulator: newEmulator(100, 16), cmd: program(append([]string{"top", "--interval", "20ms"}, flags...)...),
		master: master, ended: make(chan error, 1)}
	r.cmd.Env = append(r.cmd.Env, environment...)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = slave, slave, slave
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	fatal.If(t, r.cmd.Start())
	slave.Close()
	read := make(chan struct{})
	go func() {
		io.Copy(r, master) // EIO when the program has ended
		close(read)
	}()
	go func() {
		err := r.cmd.Wait()
		<-read
		r.ended <- err
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		master.Close()
	})
	return r
}

func (r *topRun) press(t *testing.T, keys string) {
	t.Helper()
	fatal.Value(r.master.WriteString(keys))(t)
}

// end waits until it has ended without an error, and left the screen as it was.
func (r *topRun) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("%v\n%s", err, r.screen())
		}
	case <-time.After(time.Minute):
		t.Fatalf("it does not end:\n%s", r.screen())
	}
	if all := r.all(); strings.Contains(all, "\x1b[?1049h") && !strings.Contains(all, "\x1b[?1049l") {
		t.Error("it left the terminal with its own screen")
	}
}

var onTerminal = []string{"TERM=xterm-256color", "LC_ALL=C.UTF-8", "NO_COLOR="}

// Ensure that top on a real terminal does what its keys say while caches come, work and go, that its numbers
// are those of stats, and that it leaves the terminal as it was.
func TestTop(t *testing.T) {
	dir := tmpfs.Folder(t)
	r := startTop(t, onTerminal, "--dir", dir)
	r.shows(t, "stocached top  0 caches", "no caches in "+dir+" yet; stocached create makes one")
	o := small()
	o.Name, o.Dir = "first", dir
	seg := fatal.Value(shm.Create(o))(t)
	path := seg.Path()
	seg.Close()
	c := newClient(t, path)
	store(t, c, 0, 1, 2)
	for _, i := range []int{0, 1, 2, 2, 7} {
		if _, _, err := c.View(i); err != nil {
			t.Fatal(err)
		}
	}
	r.shows(t, "1 cache  1 client", "first", "0.3000", "HIT RATE", "enter open")
	r.press(t, "\r")
	r.shows(t, path, "first  10 samples, policy first-come", "down: ")
	row := decode[jsonObject](t, ok(t, "stats", path, "--json"))
	for _, line := range []string{fmt.Sprintf(`hit rate +\S+ +%.4f\s`, row["hit_rate"]), `cached +0\.3000 +3\s`,
		fmt.Sprintf(`hits/s +\S+ +%.0f\s`, row["hits"]), fmt.Sprintf(`sets/s +\S+ +%.0f\s`, row["stored"])} {
		r.wait(t, "it has "+line, regexp.MustCompile(line).MatchString)
	}
	r.press(t, "G")
	r.shows(t, fmt.Sprintf("%d go ", os.Getpid()), "test client")
	r.resize(60, 40) // before the program knows, as in a terminal
	fatal.If(t, unix.IoctlSetWinsize(int(r.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 60}))
	r.shows(t, "hit rate", fmt.Sprintf("%d go ", os.Getpid()))
	r.press(t, "?")
	r.shows(t, "Keys", "choose the cache above, or scroll")
	r.press(t, "\x1b")
	r.shows(t, "first  10 samples")
	r.press(t, "\x1b[D") // left
	r.shows(t, "HIT RATE", "> first")
	r.press(t, "/")
	r.shows(t, "show names with: _")
	r.press(t, "zz")
	r.shows(t, `no name has the text "zz"`)
	r.press(t, "\x1b")
	r.shows(t, "> first")
	r.press(t, "\r")
	r.shows(t, path)
	fatal.If(t, shm.Unlink(path))
	r.shows(t, "first is gone", "0 caches")
	fatal.If(t, os.WriteFile(filepath.Join(dir, "broken"), make([]byte, 10000), 0o600))
	r.wait(t, "it tells of a file that is no cache", func(screen string) bool {
		return strings.Contains(strings.ReplaceAll(screen, "\n", " "), "broken: not a valid segment")
	})
	r.press(t, "q")
	r.end(t)
	if !regexp.MustCompile(`\x1b\[[0-9;]*38;5;`).MatchString(r.all()) {
		t.Error("curves have no colour")
	}
}

// Ensure that NO_COLOR leaves out colours, that a locale without UTF-8 gets ASCII, and that a terminal without
// cursor movement gets lines. An interrupt and SIGTERM end it without an error.
func TestTopPlain(t *testing.T) {
	dir, path := newCache(t, small())
	c := newClient(t, path)
	store(t, c, 0, 1, 2)
	colour := regexp.MustCompile(`\x1b\[[0-9;]*[34]8[;:]`)

	r := startTop(t, []string{"TERM=xterm-256color", "LC_ALL=C.UTF-8", "NO_COLOR=1"}, "--dir", dir)
	r.shows(t, "> test", "▁▁▁")
	r.press(t, "\x03")
	r.end(t)
	expect.Equal(t, colour.FindString(r.all()), "", "a colour")

	r = startTop(t, []string{"TERM=vt100", "LC_ALL=C"}, "--dir", dir)
	r.shows(t, "> test", "____")
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.end(t)
	expect.Equal(t, regexp.MustCompile(`[^\x00-\x7f]+`).FindString(r.all()), "", "written without UTF-8")

	r = startTop(t, []string{"TERM=dumb", "LC_ALL=C.UTF-8"}, "--dir", dir)
	r.wait(t, "it prints frames", func(string) bool { return strings.Count(r.all(), "stocached top") > 2 })
	r.cmd.Process.Signal(os.Interrupt)
	r.end(t)
	if all := r.all(); strings.Contains(all, "\x1b") || !strings.Contains(all, "test") {
		t.Errorf("%q", all)
	}
}

// Ensure that one frame can go anywhere, with the numbers of stats, and that a screen cannot.
func TestTopOnce(t *testing.T) {
	dir, path := newCache(t, shm.Options{Samples: 1000, SampleBytes: 100})
	child := start(t, "use", path)
	out := ok(t, "top", "--once", "--dir", dir, "--interval", "100ms")
	row := decode[jsonObject](t, ok(t, "stats", path, "--json"))
	contains(t, out, "stocached top  1 cache  1 client", fmt.Sprintf(" %.4f", row["cached_fraction"]), "test")
	if rate := regexp.MustCompile(` test +1 +0\.[45]\d+ `); !rate.MatchString(out) {
		t.Errorf("no hit rate of the interval:\n%s", out)
	}
	child.end(t)
	fails(t, exitUsage, []string{"the output is no terminal", "--once", "stats --watch"}, "top", "--dir", dir)
	fails(t, exitUsage, []string{"interval 0s is not above 0"}, "top", "--interval", "0s")
	fails(t, exitUsage, []string{"1 argument"}, "top", "test")
	contains(t, ok(t, "top", "--once", "--dir", tmpfs.Folder(t), "--interval", "1ms"), "no caches in ")
	fails(t, exitNotFound, []string{"--dir: stat " + dir + "/nothing-here: no such file or directory; leave it out"},
		"top", "--once", "--dir", dir+"/nothing-here")
	for columns, want := range map[string]int{"": 120, "40": 40, "200": 200, "wide": 120, "-1": 120} {
		t.Setenv("COLUMNS", columns)
		widest := 0
		for line := range strings.Lines(ok(t, "top", "--once", "--dir", dir, "--interval", "1ms")) {
			widest = max(widest, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
		}
		if widest > want || widest < want-15 {
			t.Errorf("COLUMNS=%s: %d columns", columns, widest)
		}
	}
}
