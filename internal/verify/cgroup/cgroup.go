// Package cgroup makes memory cgroups for tests. The kernel kills processes in a cgroup that use
// more than its limit.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a cgroup with a limit of memory.
type Group struct {
	dir       string
	LimitFile string // memory.limit_in_bytes (version 1) or memory.max (version 2)
}

// ErrNone says why no cgroup can be made here: it needs root and a memory controller.
var ErrNone = errors.New("no cgroup with a memory limit can be made here")

// New makes a group below the group of this process (version 1), or at the top (version 2, where
// only groups without processes may have children). Remove removes it.
func New(limit uint64) (*Group, error) {
	own, err := ownGroup()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	for _, g := range []Group{{filepath.Join("/sys/fs/cgroup/memory", own), "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"}} {
		g.dir = filepath.Join(g.dir, fmt.Sprintf("stocached-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		if err = os.Mkdir(g.dir, 0o700); err != nil {
			continue
		}
		// an error here: version 2 without the controller
		if err = os.WriteFile(filepath.Join(g.dir, g.LimitFile), []byte(strconv.FormatUint(limit, 10)),
			0o600); err == nil {
			return &g, nil
		}
		_ = unix.Rmdir(g.dir)
	}
	return nil, fmt.Errorf("%w: %w", ErrNone, err)
}

// ownGroup returns the path of this process's group of the memory controller, version 1; "/" if
// there is none.
func ownGroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	for _, line := range strings.Split(string(text), "\n") {
		if part := strings.SplitN(line, ":", 3); len(part) == 3 && part[1] == "memory" {
			return part[2], nil
		}
	}
	return "/", err
}

// Command returns a command that runs in the group from its start.
func (g *Group) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("/bin/sh",
		append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), name}, args...)...)
}

// Kills returns how many processes of the group the kernel has killed because of the limit.
func (g *Group) Kills() (int, error) {
	for _, name := range []string{"memory.oom_control", "memory.events"} {
		f, err := os.Open(filepath.Join(g.dir, name))
		if err != nil {
			continue
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if n, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
				return strconv.Atoi(n)
			}
		}
	}
	return 0, fmt.Errorf("%s does not say how many processes were killed", g.dir)
}

// Peak returns the most memory that the group ever had, in bytes; 0 where the kernel does not say.
func (g *Group) Peak() uint64 {
	for _, name := range []string{"memory.max_usage_in_bytes", "memory.peak"} {
		if text, err := os.ReadFile(filepath.Join(g.dir, name)); err == nil {
			n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			return n
		}
	}
	return 0
}

// Remove removes the group once the last of its processes, which must have ended, has left it.
func (g *Group) Remove() error {
	var err error
	for range 1000 {
		if err = unix.Rmdir(g.dir); err != unix.EBUSY {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}
