package shm

import (
	"cmp"
	"runtime"
)

// Locks are the locks of one client on one segment. Each Locks is one lock description and one
// owner (docs/spec/protocol.md, Who is alive). It holds the shared users lock from NewLocks to
// Close. It is safe for concurrent use, but Close MUST be the last call.
type Locks interface {
	// TryLock tries the lock of a client record. It returns false if a live client holds it through
	// another Locks, and true if this Locks holds it already.
	TryLock(record uint32) (bool, error)
	// Unlock releases the lock of a client record.
	Unlock(record uint32) error
	// TryServer tries the server lock: its holder fills the cache for others, one at a time. It
	// returns false if another Locks holds it. Close releases it. Who removes a named segment holds
	// this lock, too, so look at HasName after it.
	TryServer() (bool, error)
	// LastUser tries to turn the shared users lock into an exclusive one. true: no other client
	// uses the segment, and none can attach until Close, which MUST follow. false: there are other
	// users, and the shared lock stays.
	LastUser() (bool, error)
	// Close releases all locks at once, like the end of the process.
	Close() error
}

// NewLocks opens a lock description and takes the shared users lock. The caller is a client of the
// segment from then on.
//
// Errors: ErrReadOnly for a segment attached read-only, or if the process may not open the file
// again through /proc or by path. ErrSystem if it has too many open files. ErrNotFound if the segment was opened by name and its last user
// removed that name before the first NewLocks: open the name again. ErrTimeout if the last user
// stops between locking and removing.
func (s *Segment) NewLocks() (Locks, error) {
	defer runtime.KeepAlive(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fail(ErrClosed, "%s", s.describe())
	case s.readOnly:
		return nil, fail(ErrReadOnly, "a read-only client holds no locks")
	case s.heap != nil:
		return s.heap.newOwner()
	}
	l := s.first
	if s.first = nil; l == nil {
		var err error
		if l, err = lockFile(s.FD(), s.lockPath(), s.checksName()); err != nil {
			return nil, err
		}
	}
	s.locked = true
	return l, nil
}

// lockPath is the path of the file with the locks.
func (s *Segment) lockPath() string { return cmp.Or(s.controlPath, s.path) }

// checksName says whether a file without a name is no cache for the next client.
func (s *Segment) checksName() bool {
	return s.controlPath != "" || s.byName && !s.locked && s.Header.Flags&FlagNamed != 0
}

// Probe says which locks of a segment are held at one moment.
type Probe struct {
	Records []uint32 // client records whose lock is held, ascending
	Users   bool     // a client holds the users lock
	Server  bool     // a client holds the server lock
}

// ProbeLocks asks the kernel who holds which lock. It takes no lock, and works read-only. It counts
// the locks of this process too: they belong to other descriptions than the data descriptor,
// through which it asks.
func (s *Segment) ProbeLocks() (Probe, error) {
	if s.heap != nil {
		return s.heap.probe(), nil
	}
	defer runtime.KeepAlive(s)
	return probeFile(s.FD(), s.ClientRecords)
}
