package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LookAt lists the segment of a name or path, as List does.
func LookAt(nameOrPath string) (Listed, error) {
	path, err := locate(nameOrPath)
	if err != nil {
		return Listed{}, err
	}
	return lookAt(path)
}

// lookAt is LookAt of a path.
func lookAt(path string) (Listed, error) {
	fd, _, err := openFile(path, true)
	if err != nil {
		return Listed{}, err
	}
	defer unix.Close(fd)
	l := Listed{Path: path}
	l.inspect(fd)
	return l, nil
}

// OtherVersion says whether the segment is of another version: Open cannot attach to it, and Create replaces it if no
// process uses it (docs/spec/segment.md, What every version keeps).
func (l *Listed) OtherVersion() bool { return errors.Is(l.Err, ErrVersion) }

// CheckReplaceable returns why Create does not replace a segment of another version: ErrVersion with the processes that
// use it. nil: it does.
func (l *Listed) CheckReplaceable() error {
	p, err := l.Probe()
	if err == nil && p.Users {
		err = l.usedError()
	}
	return err
}

// usedError names the users of a segment of another version.
func (l *Listed) usedError() error {
	return fmt.Errorf("%w; %s use it: end them, and it is replaced", l.Err, l.users())
}

// users lists the processes that have the segment, as far as the kernel's list of locks names them.
func (l *Listed) users() string {
	var pids []int
	for pid, ids := range clients() {
		if slices.Contains(ids, l.id) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	const most = 8
	var list []string
	for _, pid := range pids[:min(len(pids), most)] {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may have ended
		list = append(list, fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(name))))
	}
	switch {
	case len(pids) == 0:
		return "processes in other containers"
	case len(pids) > most:
		list = append(list, fmt.Sprintf("%d more", len(pids)-most))
	}
	return "processes " + strings.Join(list, ", ")
}

// makeWay removes a segment of another version that no process uses from the path of a new one. replaced is why Open
// could not attach to it. Errors: ErrExists for
// any other file there; ErrVersion with the users.
func makeWay(path string, policy Policy) (replaced, err error) {
	l, err := lookAt(path)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil || !l.OtherVersion() {
		return nil, existsError(path, policy)
	}
	removed, err := RemoveUnused(&l)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil // another process has removed it; linkat decides about what came in its place
	case err == nil && !removed:
		return nil, l.usedError()
	case err == nil:
		return l.Err, nil
	}
	return nil, err
}
