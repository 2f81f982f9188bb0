package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"

	"golang.org/x/sys/unix"
)

// leave limits the server to `room` more descriptors, and returns the limit before.
func (s *served) leave(room int) (before unix.Rlimit) {
	s.t.Helper()
	limit := 0
	for free := -1; ; limit++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", s.process.Process.Pid, limit)); err == nil {
			continue
		}
		if free++; free == room { // a new descriptor gets the lowest free number
			break
		}
	}
	fatal.If(s.t, unix.Prlimit(s.process.Process.Pid, unix.RLIMIT_NOFILE, nil, &before))
	if err := unix.Prlimit(s.process.Process.Pid, unix.RLIMIT_NOFILE,
		&unix.Rlimit{Cur: uint64(limit), Max: before.Max}, nil); err != nil {
		s.t.Fatal(err)
	}
	return before
}

// failures fetches samples and returns the failures of those that did not come.
func (s *served) failures(c *stocclient.Served, indices []int) map[int]stocclient.FetchFailure {
	s.t.Helper()
	samples, err := c.FetchSamples(context.Background(), indices)
	var failed *stocclient.FetchError
	if err != nil && !errors.As(err, &failed) {
		s.t.Fatal(err)
	}
	wrong := map[int]stocclient.FetchFailure{}
	if failed != nil {
		for _, f := range failed.Failures {
			wrong[f.Index] = f
		}
	}
	for k, i := range indices {
		if _, failed := wrong[i]; failed != (samples[k] == nil) || !failed &&
			!bytes.Equal(samples[k], servedRecord(i)) {
			s.t.Errorf("sample %d: %d bytes, %+v", i, len(samples[k]), wrong[i])
		}
	}
	return wrong
}

// Ensure that a server with a full table of descriptors goes on for connected clients and reports
// what it could not open. It logs the problem once and not ten times a second, uses no processor
// time as long as the table is full, and recovers when descriptors are free.
func TestServerOutOfDescriptors(t *testing.T) {
	const n = 60
	s := configureServed(t, "source: {kind: dir, path: records, descriptors: 0}")
	s.writeTree(n, servedRecord)
	s.start()
	c := s.dial()
	s.failures(c, first(20))
	before := s.leave(0)

	// Files.
	wrong := s.failures(c, first(25)) // the first 20 are hits
	for i := range 25 {
		if f, failed := wrong[i]; failed != (i >= 20) || failed &&
			(f.Code != control.CodeRead || !strings.Contains(f.Text, "too many open files") ||
				!strings.Contains(f.Text, s.file(i))) {
			t.Errorf("sample %d: %+v", i, f)
		}
	}
	// New clients and operators.
	began := time.Now()
	_, err := stocclient.Dial(context.Background(), "pets",
		stocclient.DialOptions{SocketsDir: s.sockets, Timeout: 700 * time.Millisecond})
	if !errors.Is(err, stocclient.ErrNoServer) || !strings.Contains(err.Error(), "did not answer within 700ms") ||
		time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	operator := fatal.Value(net.Dial("unix", filepath.Join(s.sockets, control.AdminSocket)))(t)
	defer operator.Close()
	time.Sleep(300 * time.Millisecond)
	s.failures(c, first(20))
	log := s.said()
	for _, socket := range []string{control.DataSocket, control.AdminSocket} {
		lines := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, "no connection can be accepted") && strings.Contains(line, socket) &&
				strings.Contains(line, "too many open files") && strings.Contains(line, "ulimit -n") {
				lines++
			}
		}
		expect.Equal(t, lines, 1, "times that it was said of %s", socket)
	}
	if lines := strings.Count(log, "\n"); lines > 6 {
		t.Errorf("%d lines of log", lines)
	}

	// Enough for a connection, but not for the files of its requests.
	fatal.If(t, unix.Prlimit(s.process.Process.Pid, unix.RLIMIT_NOFILE, &before, nil))
	operator.Close()
	expect.Equal(t, int(s.metric("stocached_source_errors_total", `cache="pets",kind="descriptors"`)), 5, "errors counted")
	forgotten := func() bool {
		descriptors := fatal.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.Process.Pid)))(t)
		sockets := 0
		for _, d := range descriptors {
			if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", s.process.Process.Pid, d.Name())); err == nil &&
				strings.HasPrefix(to, "socket:") {
				sockets++
			}
		}
		return sockets == 3 // its two listeners, and a client
	}
	fatal.Until(t, "those who went away are forgotten", forgotten)
	s.leave(1)
	var remote *stocclient.RemoteError
	if _, err := stocclient.Dial(context.Background(), "pets",
		stocclient.DialOptions{SocketsDir: s.sockets}); !errors.As(err, &remote) ||
		remote.Code != control.CodeInternal ||
		!strings.Contains(err.Error(), "too many open files") {
		t.Errorf("a client that could connect and not attach: %v", err)
	}

	// Descriptors are free again.
	fatal.If(t, unix.Prlimit(s.process.Process.Pid, unix.RLIMIT_NOFILE, &before, nil))
	late := s.dial()
	if wrong := s.failures(late, first(n)); len(wrong) != 0 {
		t.Errorf("with room again: %+v", wrong)
	}
	s.failures(c, first(n))
	if got := s.answers("/readyz"); !strings.HasPrefix(got, "ok\nfailing: cache pets: reads fail (descriptors): first ") {
		t.Errorf("readyz: %q", got)
	}
	contains(t, s.said(), "connections are accepted again")
}

// Ensure that a server refuses more caches than it may open files for. Else it would serve some of them, and have no
// descriptor left for a connection.
func TestMoreCachesThanDescriptors(t *testing.T) {
	s := newFolder(t)
	s.write(4)
	caches := "caches:\n"
	for k := range 30 {
		caches += fmt.Sprintf("  - {name: c%02d, dir: %s, source: {kind: raw, path: records, sample_bytes: %d}}\n", k, s.segments,
			servedBytes)
	}
	s.configure(caches)
	server := program("serve", "-c", s.path)
	shell := exec.Command("sh", append([]string{"-c", `ulimit -n 100; exec "$0" "$@"`}, server.Args...)...)
	shell.Env = server.Env
	said, err := shell.CombinedOutput()
	contains(t, string(said), "30 caches need 124 open files, and the limit is 100; raise it (ulimit -n")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("%v, want exit status 5", err)
	}
	if left, err := os.ReadDir(s.segments); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}
