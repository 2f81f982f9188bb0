package client

import "github.com/stocached/stocached/shm"

// The errors of this package; compare with errors.Is. Those in the second group are an ill cache or machine, never the caller's mistake.
var (
	ErrInvalid     = shm.ErrInvalid     // an argument or option makes no sense
	ErrIndex       = shm.ErrIndex       // sample index below 0 or not below the number of samples
	ErrSchema      = shm.ErrSchema      // wrong size or field for this cache
	ErrNotFound    = shm.ErrNotFound    // no such cache; also fs.ErrNotExist
	ErrExists      = shm.ErrExists      // a cache of that name exists; also fs.ErrExist
	ErrVersion     = shm.ErrVersion     // a segment of another layout version or build
	ErrFingerprint = shm.ErrFingerprint // the cache holds another dataset or transform
	ErrMemory      = shm.ErrMemory      // it does not fit: limit, tmpfs, cgroup or machine
	ErrPermission  = shm.ErrPermission  // not ours: owner, mode, or kind of file
	ErrReadOnly    = shm.ErrReadOnly    // this handle may read only
	ErrClosed      = shm.ErrClosed      // the handle is closed
	ErrClients     = shm.ErrClients     // the client table is full of live clients
	ErrTimeout     = shm.ErrTimeout     // waited long enough
	ErrFull        = shm.ErrFull        // no memory for a piece of a claim, which is aborted by that
	ErrUnsupported = shm.ErrUnsupported // not on this system

	ErrFormat  = shm.ErrFormat  // the file is no segment, or its header does not verify
	ErrSystem  = shm.ErrSystem  // a system call failed; errors.As finds the errno
	ErrLost    = shm.ErrLost    // a claim was no longer ours when it was published
	ErrCorrupt = shm.ErrCorrupt // a word, length or checksum of the cache cannot be
)
