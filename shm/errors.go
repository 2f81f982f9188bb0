package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Sentinel errors, one for each error of enum stoc_code in cclient/stocached.h. Code returns the
// number. Callers compare with errors.Is. A returned error wraps its sentinel with the numbers, the
// next step, and the errno of a failed system call.
var (
	// ErrInvalid: an argument or option makes no sense.
	ErrInvalid error = &sentinel{-1, "invalid argument", fs.ErrInvalid}
	// ErrIndex: a sample index is below 0, or not below the number of samples.
	ErrIndex error = &sentinel{-2, "sample index out of range", nil}
	// ErrSchema: the size, dtype, shape or field does not fit this cache.
	ErrSchema error = &sentinel{-3, "outside the schema of the cache", nil}
	// ErrNotFound: no such cache. Also when its last user removed it while this process opened it.
	ErrNotFound error = &sentinel{-4, "no such cache", fs.ErrNotExist}
	// ErrExists: a cache, or another file, has that name.
	ErrExists error = &sentinel{-5, "the cache exists", fs.ErrExist}
	// ErrFormat: the file is no segment, is truncated, has an invalid header or another uuid.
	ErrFormat error = &sentinel{-6, "not a valid segment", nil}
	// ErrVersion: the segment has another layout version, byte order or signature of sizes.
	ErrVersion error = &sentinel{-7, "segment of another version", nil}
	// ErrFingerprint: the cache holds another dataset or transform than the caller asked for.
	ErrFingerprint error = &sentinel{-8, "the cache holds another dataset or transform", nil}
	// ErrMemory: the memory is too small: limit, tmpfs, cgroup, machine, or a resource limit of the
	// process.
	ErrMemory error = &sentinel{-9, "it does not fit", nil}
	// ErrPermission: owner, mode or kind of the file forbid access.
	ErrPermission error = &sentinel{-10, "not ours", fs.ErrPermission}
	// ErrReadOnly: this handle may only read.
	ErrReadOnly error = &sentinel{-11, "attached read-only", nil}
	// ErrClosed: the handle is closed.
	ErrClosed error = &sentinel{-12, "closed", fs.ErrClosed}
	// ErrClients: the client table is full of live clients.
	ErrClients error = &sentinel{-13, "the client table is full", nil}
	// ErrTimeout: the deadline has passed.
	ErrTimeout error = &sentinel{-14, "timed out", os.ErrDeadlineExceeded}
	// ErrSystem: a system call failed, and no other sentinel fits. errors.As finds the errno.
	ErrSystem error = &sentinel{-15, "system call failed", nil}
	// ErrLost: the client had lost its claim when it published.
	ErrLost error = &sentinel{-16, "the claim was lost", nil}
	// ErrCorrupt: a word, length or checksum of the cache is impossible.
	ErrCorrupt error = &sentinel{-17, "the cache is corrupt", nil}
	// ErrUnsupported: this system cannot do it.
	ErrUnsupported error = &sentinel{-18, "not supported on this system", errors.ErrUnsupported}

	// ErrFull: no pages for the payload, or memory is below the floor. Its number is that of the
	// result STOC_FULL: it is an answer, not a failure.
	ErrFull error = &sentinel{3, "the cache is full", nil}
)

// sentinel is an error with a stable number. It also matches the error of the standard library with
// the same meaning.
type sentinel struct {
	code int
	text string
	also error
}

func (e *sentinel) Error() string { return e.text }

func (e *sentinel) Is(target error) bool { return e.also != nil && target == e.also }

// Code returns the number of an error in enum stoc_code: 0 for nil, and that of ErrSystem for an
// error that wraps no sentinel.
func Code(err error) int {
	if err == nil {
		return 0
	}
	var s *sentinel
	if errors.As(err, &s) {
		return s.code
	}
	return ErrSystem.(*sentinel).code
}

// fail wraps a sentinel with a message: the operation, the numbers, the next step. %w in format
// wraps a cause.
func fail(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{kind}, args...)...)
}
