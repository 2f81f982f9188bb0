package client

import "github.com/stocached/stocached/shm"

// The errors of this package; compare them with errors.Is. Errors of the second group mean a fault
// of the cache or the machine, never of the caller.
var (
	ErrInvalid     = shm.ErrInvalid     // an argument or option makes no sense
	ErrIndex       = shm.ErrIndex       // a sample index is below 0, or not below the number of samples
	ErrSchema      = shm.ErrSchema      // the size or field does not fit this cache
	ErrNotFound    = shm.ErrNotFound    // no such cache; matches fs.ErrNotExist too
	ErrExists      = shm.ErrExists      // a cache of that name exists; matches fs.ErrExist too
	ErrVersion     = shm.ErrVersion     // a segment of another layout version or build
	ErrFingerprint = shm.ErrFingerprint // the cache holds another dataset or transform
	ErrMemory      = shm.ErrMemory      // the memory is too small: limit, tmpfs, cgroup or machine
	ErrPermission  = shm.ErrPermission  // owner, mode or kind of the file forbid access
	ErrReadOnly    = shm.ErrReadOnly    // this handle may only read
	ErrClosed      = shm.ErrClosed      // the handle is closed
	ErrClients     = shm.ErrClients     // the client table is full of live clients
	ErrTimeout     = shm.ErrTimeout     // the deadline has passed
	ErrFull        = shm.ErrFull        // no memory for a piece of a claim; the claim is aborted
	ErrUnsupported = shm.ErrUnsupported // this system cannot do it

	ErrFormat  = shm.ErrFormat  // the file is no segment, or its header is invalid
	ErrSystem  = shm.ErrSystem  // a system call failed; errors.As finds the errno
	ErrLost    = shm.ErrLost    // the client had lost its claim when it published
	ErrCorrupt = shm.ErrCorrupt // a word, length or checksum of the cache is impossible
)
