package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fileLocks is a lock description. This process opened it for locks only: it is close-on-exec, and
// never mapped, duplicated, sent or written through. So the kernel frees its locks exactly when
// this process dies or closes it.
type fileLocks struct {
	mu sync.Mutex // protects fd: no lock call may use a number that Close has given back
	fd int        // -1: closed
}

// leaveTimeout bounds the wait for a last user between its exclusive lock and its exit. That takes
// microseconds, unless the process is stopped.
const leaveTimeout = 5 * time.Second

// lockFile opens a lock description for the file of fd and takes the shared users lock. With
// checkName it returns ErrNotFound for a file that has lost its name.
func lockFile(fd int, path string, checkName bool) (*fileLocks, error) {
	own, err := reopen(fd, path)
	switch {
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM):
		return nil, fail(ErrSystem, "%w", err) // the process may open it, but not now
	case err != nil:
		return nil, fail(ErrReadOnly,
			"a client needs a lock description of its own: %w; mount /proc, or attach read-only", err)
	}
	l := &fileLocks{fd: own}
	// With this lock /proc/locks names this process. No process waits for it, and its failure is
	// harmless.
	_ = unix.Flock(own, unix.LOCK_SH|unix.LOCK_NB)
	if err := l.use(checkName); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// reopen makes a new description of the file of fd: through /proc, which needs no name, or by path
// if that is still the same file.
func reopen(fd int, path string) (int, error) {
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil && path != "" {
		own, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("open /proc/self/fd/%d or %q: %w", fd, path, err)
	}
	if !sameFile(own, fd) {
		unix.Close(own)
		return -1, fmt.Errorf("%q is another file by now", path)
	}
	return own, nil
}

func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// use takes the shared users lock. It waits for a last user that is leaving.
func (l *fileLocks) use(checkName bool) error {
	for deadline := time.Now().Add(leaveTimeout); ; time.Sleep(time.Millisecond) {
		ok, err := l.set(unix.F_RDLCK, UsersLockByte)
		if err != nil {
			return err
		}
		if checkName { // in this order: a last user removes the name while it holds the lock exclusively
			var st unix.Stat_t
			if err := unix.Fstat(l.fd, &st); err != nil {
				return fail(ErrSystem, "stat: %w", err)
			}
			if st.Nlink == 0 {
				return fail(ErrNotFound, "its last user removed it while it was being opened; create it again")
			}
		}
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fail(ErrTimeout,
				"the last user has held the users lock for %v: it was stopped while leaving; continue or end it", leaveTimeout)
		}
	}
}

func (l *fileLocks) TryLock(record uint32) (bool, error) {
	return l.set(unix.F_WRLCK, RecordLockByte(record))
}

func (l *fileLocks) Unlock(record uint32) error {
	_, err := l.set(unix.F_UNLCK, RecordLockByte(record))
	return err
}

func (l *fileLocks) TryServer() (bool, error) { return l.set(unix.F_WRLCK, ServerLockByte) }

func (l *fileLocks) LastUser() (bool, error) { return l.set(unix.F_WRLCK, UsersLockByte) }

func (l *fileLocks) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	err := unix.Close(l.fd)
	if l.fd = -1; err != nil {
		return fail(ErrSystem, "close the lock description: %w", err)
	}
	return nil
}

// set is LockByte of the description.
func (l *fileLocks) set(kind int16, at int64) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return false, fail(ErrClosed, "lock byte %d", at)
	}
	return LockByte(l.fd, kind, at)
}

// LockByte changes the lock that the description of fd has on one byte of its file: F_RDLCK,
// F_WRLCK or F_UNLCK. It returns false if another description holds a conflicting lock. Error:
// ErrSystem.
func LockByte(fd int, kind int16, at int64) (bool, error) {
	lock := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: 1}
	for {
		switch err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err {
		case nil:
			return true, nil
		case unix.EINTR:
		case unix.EAGAIN, unix.EACCES:
			return false, nil
		default:
			return false, fail(ErrSystem, "lock byte %d: %w", at, err)
		}
	}
}

// probeFile asks through a description that holds no locks.
func probeFile(fd int, records uint32) (Probe, error) {
	var p Probe
	for _, b := range []struct {
		at   int64
		held *bool
	}{{UsersLockByte, &p.Users}, {ServerLockByte, &p.Server}} {
		_, _, held, err := firstLock(fd, b.at, b.at)
		if err != nil {
			return p, err
		}
		*b.held = held
	}
	// The kernel names one lock in a range, not always the lowest. So probe the rest on both sides
	// of it. A range without locks costs one call.
	type span struct{ from, to int64 }
	for todo := []span{{RecordLockByte(0), RecordLockByte(records) - 1}}; len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.from > s.to {
			continue
		}
		from, to, held, err := firstLock(fd, s.from, s.to)
		if err != nil {
			return p, err
		}
		if !held {
			continue
		}
		first := (max(from, s.from) - RecordLockByte(0) + ClientRecordBytes - 1) / ClientRecordBytes
		for r := first; RecordLockByte(uint32(r)) <= min(to, s.to); r++ {
			p.Records = append(p.Records, uint32(r))
		}
		todo = append(todo, span{s.from, from - 1}, span{to + 1, s.to})
	}
	slices.Sort(p.Records)
	return p, nil
}

// firstLock returns the inclusive bounds of one lock in from..to.
func firstLock(fd int, from, to int64) (first, last int64, held bool, err error) {
	for {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: from, Len: to - from + 1}
		switch err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err {
		case nil:
			if lock.Type == unix.F_UNLCK {
				return 0, 0, false, nil
			}
			if lock.Len == 0 { // to the end of the file
				return lock.Start, to, true, nil
			}
			return lock.Start, lock.Start + lock.Len - 1, true, nil
		case unix.EINTR:
		default:
			return 0, 0, false, fail(ErrSystem, "probe the locks of bytes %d..%d: %w", from, to, err)
		}
	}
}
