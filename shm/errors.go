package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Sentinel errors, one for each error of enum stoc_code in cclient/stocached.h; Code gives its number. Callers compare with errors.Is.
// What is returned wraps them with the numbers and the next step, and with the errno of a failed system call where there is one.
var (
	// ErrInvalid: an argument or option makes no sense.
	ErrInvalid error = &sentinel{-1, "invalid argument", fs.ErrInvalid}
	// ErrIndex: a sample index below 0 or not below the number of samples.
	ErrIndex error = &sentinel{-2, "sample index out of range", nil}
	// ErrSchema: wrong size, dtype, shape or field for this cache.
	ErrSchema error = &sentinel{-3, "outside the schema of the cache", nil}
	// ErrNotFound: no such cache; also when its last user removed it while it was being opened.
	ErrNotFound error = &sentinel{-4, "no such cache", fs.ErrNotExist}
	// ErrExists: Create found a cache, or something else, of that name.
	ErrExists error = &sentinel{-5, "the cache exists", fs.ErrExist}
	// ErrFormat: the file is no segment, is truncated, its header does not verify, or its uuid is another.
	ErrFormat error = &sentinel{-6, "not a valid segment", nil}
	// ErrVersion: a segment of another layout version, byte order or build.
	ErrVersion error = &sentinel{-7, "segment of another version", nil}
	// ErrFingerprint: the cache holds another dataset or transform than the one asked for.
	ErrFingerprint error = &sentinel{-8, "the cache holds another dataset or transform", nil}
	// ErrMemory: it does not fit: limit, tmpfs, cgroup, machine, or a resource limit of the process.
	ErrMemory error = &sentinel{-9, "it does not fit", nil}
	// ErrPermission: not ours: owner, mode, or kind of file.
	ErrPermission error = &sentinel{-10, "not ours", fs.ErrPermission}
	// ErrReadOnly: this handle may only read.
	ErrReadOnly error = &sentinel{-11, "attached read-only", nil}
	// ErrClosed: the handle is closed.
	ErrClosed error = &sentinel{-12, "closed", fs.ErrClosed}
	// ErrClients: the client table is full of live clients.
	ErrClients error = &sentinel{-13, "the client table is full", nil}
	// ErrTimeout: waited long enough.
	ErrTimeout error = &sentinel{-14, "timed out", os.ErrDeadlineExceeded}
	// ErrSystem: a system call failed in a way that has no name of its own; errors.As finds the errno.
	ErrSystem error = &sentinel{-15, "system call failed", nil}
	// ErrLost: the claim was no longer ours when it was published.
	ErrLost error = &sentinel{-16, "the claim was lost", nil}
	// ErrCorrupt: a word, length or checksum of the cache cannot be.
	ErrCorrupt error = &sentinel{-17, "the cache is corrupt", nil}
	// ErrUnsupported: not on this system.
	ErrUnsupported error = &sentinel{-18, "not supported on this system", errors.ErrUnsupported}

	// ErrFull: no pages for the payload, or memory is below the floor. Its number is the result STOC_FULL: it is an answer, not a failure.
	ErrFull error = &sentinel{3, "the cache is full", nil}
)

// sentinel is an error with a stable number. also is the standard library's error of the same meaning, which it matches too.
type sentinel struct {
	code int
	text string
	also error
}

func (e *sentinel) Error() string { return e.text }

func (e *sentinel) Is(target error) bool { return e.also != nil && target == e.also }

// Code returns the number of an error in enum stoc_code: 0 for nil, that of ErrSystem for errors which wrap none of ours.
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

// fail wraps a sentinel with a message: what was tried, the numbers, the next step. %w in format wraps a cause as well.
func fail(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{kind}, args...)...)
}
