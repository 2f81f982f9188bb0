package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// small returns options of the simplest cache.
func small() Options {
	return Options{Name: "small", Samples: 10, Slots: 4, SampleBytes: 100, ClientRecords: 3}
}

// tempDir makes a directory in /dev/shm and removes it when the test ends.
func tempDir(t testing.TB) string {
	t.Helper()
	dir := fatal.Value(os.MkdirTemp("/dev/shm", fmt.Sprintf("shm-test-%d-", os.Getpid())))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// create makes a segment and closes it when the test ends.
func create(t testing.TB, o Options) *Segment {
	t.Helper()
	s := fatal.Value(Create(o))(t)
	closeLater(t, s)
	return s
}

// open attaches to a segment until the test ends.
func open(t testing.TB, path string, o OpenOptions) *Segment {
	t.Helper()
	s := fatal.Value(Open(path, o))(t)
	closeLater(t, s)
	return s
}

func closeLater(t testing.TB, s *Segment) {
	t.Cleanup(func() { expect.NoError(t, s.Close()) })
}

// locks takes locks until the test ends.
func locks(t testing.TB, s *Segment) Locks {
	t.Helper()
	l := fatal.Value(s.NewLocks())(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func notRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	return nil
}

// children are functions that a test runs in its own process, by re-executing the test binary: for
// limits, users, signals and deaths.
var children = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if name := os.Getenv("STOCACHED_TEST_CHILD"); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/shm-test-%d-*", os.Getpid())); len(left) > 0 {
		fmt.Println("tests left files:", left)
		code = max(code, 1)
	}
	os.Exit(code)
}

// child prepares a process that runs children[name].
func child(name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "STOCACHED_TEST_CHILD="+name)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// runChild runs a child to its end, and fails with its output if the child fails.
func runChild(t testing.TB, name string, args ...string) {
	t.Helper()
	cmd, out := child(name, args...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
}

// refusal is expect.Error for children, which have no testing.T.
func refusal(err, kind error, parts ...string) error {
	if !errors.Is(err, kind) {
		return fmt.Errorf("got %v, want %v", err, kind)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%q does not say %q", err, part)
		}
	}
	return nil
}
