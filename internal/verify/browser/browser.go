// Package browser finds the browser in which tests open pages. A machine may have none.
package browser

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Path returns the path of a Chromium. Without one the test is skipped, and says so.
func Path(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no chromium here, and the page was not opened: tools/setup.sh browser installs one")
	return ""
}

// Flags are for every start: nothing is shown, nothing is asked of the network by the browser itself, and what
// pages log goes to the standard error. profile is an empty folder.
func Flags(profile string) []string {
	return []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--user-data-dir=" + profile, "--window-size=1400,900"}
}

// Complaints are what pages have logged, by the standard error of a browser. Pages of this project log nothing.
func Complaints(stderr string) (lines []string) {
	for line := range strings.Lines(stderr) {
		if strings.Contains(line, "CONSOLE") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Window is a browser that shows a page until the test ends.
type Window struct {
	mu     sync.Mutex
	stderr bytes.Buffer
}

// Write takes the standard error of the browser.
func (w *Window) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stderr.Write(b)
}

// Stderr is what the browser has said so far.
func (w *Window) Stderr() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stderr.String()
}

// Open opens a page, with further flags.
func Open(t testing.TB, url string, flags ...string) *Window {
	t.Helper()
	w := &Window{}
	cmd := exec.Command(Path(t), append(append(Flags(t.TempDir()), "--remote-debugging-port=0"), append(flags, url)...)...)
	cmd.Stderr = w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has processes of its own, which end with it
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s does not run here: %v", cmd.Path, err)
	}
	t.Cleanup(func() {
		expect.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
		_ = cmd.Wait() // it was killed
	})
	return w
}
