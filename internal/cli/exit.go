package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
)

// Exit codes. They are part of the interface: scripts depend on them.
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitNotFound   = 3
	exitCorrupt    = 4
	exitMemory     = 5
	exitExists     = 6
	exitPermission = 7
	exitVersion    = 8
	exitNoServer   = 9
)

// exits has the meaning of each code, and the errors that end in it.
var exits = []struct {
	code   int
	help   string
	errors []error
}{
	{exitOK, "done", nil},
	{exitFailed, "another failure; the message says why", nil},
	{exitUsage, "invalid: a flag, an option of a cache or source, a configuration, an " +
		"index out of range",
		[]error{shm.ErrInvalid, shm.ErrIndex, source.ErrInvalid, source.ErrIndex, config.ErrInvalid,
			simulate.ErrInvalid}},
	{exitNotFound, "no such cache or file", []error{shm.ErrNotFound, fs.ErrNotExist}},
	{exitCorrupt, "corrupt: verify found bad samples, or a file has the wrong format",
		[]error{shm.ErrCorrupt, shm.ErrFormat, source.ErrCorrupt, timeline.ErrFormat,
			simulate.ErrTrace}},
	{exitMemory, "it does not fit: limit, tmpfs, cgroup, machine or disk",
		[]error{shm.ErrMemory, shm.ErrFull, unix.ENOSPC, unix.EDQUOT}},
	{exitExists, "a cache of that name exists, or another server, program or file prevents it",
		[]error{shm.ErrExists, fs.ErrExist, block.ErrBusy, server.ErrServed, unix.EADDRINUSE}},
	{exitPermission, "not allowed: owner, mode or kind of file",
		[]error{shm.ErrPermission, shm.ErrReadOnly, fs.ErrPermission}},
	{exitVersion, "a segment of another version of stocached", []error{shm.ErrVersion}},
	{exitNoServer, "no server answers", []error{stocclient.ErrNoServer}},
}

// usageError marks an error of the command line.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errReported marks an error that is already on stderr. It only carries the exit code of the error
// that it wraps.
var errReported = errors.New("reported")

func reported(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errReported, err)
}

// failures writes failures of a command that goes on, and keeps the first one.
type failures struct {
	stderr io.Writer
	first  error // as reported; nil: none
}

func (f *failures) add(err error) {
	complain(f.stderr, err)
	if f.first == nil {
		f.first = reported(err)
	}
}

// exitCode returns the code for an error; exitFailed if none fits.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	if errors.Is(err, stocclient.ErrNoServer) { // with any system error in it
		return exitNoServer
	}
	for _, e := range exits {
		if slices.ContainsFunc(e.errors, func(target error) bool { return errors.Is(err, target) }) {
			return e.code
		}
	}
	return exitFailed
}

// exitStatus is the section of a help text about the given codes, or about all. 0, 1 and 2 are
// always included.
func exitStatus(codes ...int) string {
	var b strings.Builder
	b.WriteString("EXIT STATUS")
	for _, e := range exits {
		if len(codes) == 0 || e.code <= exitUsage || slices.Contains(codes, e.code) {
			fmt.Fprintf(&b, "\n  %d  %s", e.code, e.help)
		}
	}
	return b.String()
}

// interruptible returns a context that ends at the first Ctrl-C. The second Ctrl-C ends the
// process.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
