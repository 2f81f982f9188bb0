package shm

import "runtime"

// Locks are one client's locks on one segment: a description of its own, which is one owner (docs/spec/protocol.md, Who is alive). It holds the shared
// users lock from NewLocks to Close. Safe for any number of goroutines, except that Close MUST be the last call.
type Locks interface {
	// TryLock tries the lock of a client record. false: a live client holds it, through another Locks. A record that this Locks holds already is true.
	TryLock(record uint32) (bool, error)
	// Unlock releases the lock of a client record.
	Unlock(record uint32) error
	// TryServer tries the server lock: who holds it fills the cache for others, and there is one such at a time. false: another Locks holds it. It is kept until Close.
	TryServer() (bool, error)
	// LastUser tries to turn the shared users lock into an exclusive one. true: nobody else uses the segment, and nobody can begin to until Close,
	// which MUST follow. false: there are others; the shared lock is still held.
	LastUser() (bool, error)
	// Close gives up all locks at once, as death does.
	Close() error
}

// NewLocks opens a lock description and takes the shared users lock: the segment's client from here on. ErrReadOnly for a segment attached
// read-only, and where the process cannot open the file once more (neither through /proc nor by its path); ErrNotFound when a segment that was opened by name has lost it before the first
// NewLocks (its last user took it along: open the name again); ErrTimeout when a last user stands still between locking and removing.
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
		if l, err = lockFile(s.FD(), s.path, s.byName && !s.locked && s.Header.Flags&FlagNamed != 0); err != nil {
			return nil, err
		}
	}
	s.locked = true
	return l, nil
}

// Probe says who is alive on a segment at one moment.
type Probe struct {
	Records []uint32 // client records whose lock is held, ascending
	Users   bool     // somebody holds the users lock
	Server  bool     // somebody holds the server lock
}

// ProbeLocks asks the kernel who holds which lock. It takes none and so disturbs nobody; works read-only. Locks of this process count like all others, because
// they are held by descriptions other than the data descriptor, which asks.
func (s *Segment) ProbeLocks() (Probe, error) {
	if s.heap != nil {
		return s.heap.probe(), nil
	}
	defer runtime.KeepAlive(s)
	return probeFile(s.FD(), s.ClientRecords)
}
