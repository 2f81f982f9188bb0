package shm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// Ensure that each error has its number in cclient/stocached.h, wrapped or not, and that the header
// has no others except those of requests to a server.
func TestCodes(t *testing.T) {
	text := fatal.Value(os.ReadFile("../cclient/stocached.h"))(t)
	numbers := map[string]int{}
	for _, m := range regexp.MustCompile(`STOC_(E[A-Z]+|FULL) = (-?\d+)`).FindAllStringSubmatch(string(text), -1) {
		numbers[m[1]], _ = strconv.Atoi(m[2])
	}
	delete(numbers, "EXISTS")                                                            // a result
	for _, name := range []string{"ENOSERVER", "EREPLACED", "EREMOTE", "EINTERRUPTED"} { // errors of clients of a server
		if numbers[name] >= 0 {
			t.Errorf("%s: %d", name, numbers[name])
		}
		delete(numbers, name)
	}
	ours := map[string]error{"EINVAL": ErrInvalid, "EINDEX": ErrIndex, "ESCHEMA": ErrSchema, "ENOENT": ErrNotFound,
		"EEXIST": ErrExists, "EFORMAT": ErrFormat, "EVERSION": ErrVersion,
		"EFINGERPRINT": ErrFingerprint, "EMEMORY": ErrMemory, "EPERM": ErrPermission, "EREADONLY": ErrReadOnly, "ECLOSED": ErrClosed, "ECLIENTS": ErrClients, "ETIMEOUT": ErrTimeout,
		"ESYSTEM": ErrSystem, "ELOST": ErrLost, "ECORRUPT": ErrCorrupt, "EUNSUPPORTED": ErrUnsupported, "FULL": ErrFull}
	expect.Equal(t, len(numbers), len(ours), "errors in stocached.h and here")
	for name, e := range ours {
		if n, ok := numbers[name]; !ok || Code(e) != n || Code(fmt.Errorf("more: %w", fail(e, "%d", 1))) != n {
			t.Errorf("%s: %d, stocached.h says %d", name, Code(e), n)
		}
		for other, o := range ours {
			expect.Equal(t, errors.Is(e, o), (name == other), "whether %s is %s", name, other)
		}
	}
	if Code(nil) != 0 || Code(context.Canceled) != Code(ErrSystem) {
		t.Error("nil and foreign errors")
	}
}

// Ensure that errors match the standard library's errors of the same meaning, and their errno.
func TestErrorsMatch(t *testing.T) {
	for ours, theirs := range map[error]error{ErrNotFound: fs.ErrNotExist, ErrExists: fs.ErrExist,
		ErrPermission: fs.ErrPermission, ErrClosed: fs.ErrClosed, ErrInvalid: fs.ErrInvalid,
		ErrTimeout: os.ErrDeadlineExceeded, ErrUnsupported: errors.ErrUnsupported} {
		if !errors.Is(fail(ours, "x"), theirs) {
			t.Errorf("%v is not %v", ours, theirs)
		}
	}
	var errno unix.Errno
	if err := fail(ErrSystem, "try: %w", unix.EIO); !errors.As(err, &errno) || errno != unix.EIO || !errors.Is(err, ErrSystem) {
		t.Error(err)
	}
}
