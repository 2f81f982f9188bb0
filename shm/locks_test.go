package shm

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// eachKind runs a test on the heap, on a named segment and on a memfd: locks must not differ.
func eachKind(t *testing.T, test func(t *testing.T, s *Segment)) {
	t.Run("heap", func(t *testing.T) {
		s := fatal.Value(NewHeap(small()))(t)
		closeLater(t, s)
		test(t, s)
	})
	t.Run("named", func(t *testing.T) {
		o := small()
		o.Dir = tempDir(t)
		test(t, create(t, o))
	})
	t.Run("memfd", func(t *testing.T) {
		o := small()
		o.Name = ""
		test(t, create(t, o))
	})
}

func mustTry(t *testing.T, l Locks, record uint32, want bool) {
	t.Helper()
	expect.Gives(l.TryLock(record))(t, want, record)
}

func mustProbe(t *testing.T, s *Segment, users bool, records ...uint32) {
	t.Helper()
	p, err := s.ProbeLocks()
	if err != nil || p.Users != users || !slices.Equal(p.Records, records) {
		t.Errorf("probe: %+v, %v; want users %v, records %v", p, err, users, records)
	}
}

// Ensure that two Locks in one process are two clients, that Unlock and Close release a lock, and
// that a probe sees all locks and changes none.
func TestLocks(t *testing.T) {
	eachKind(t, func(t *testing.T, s *Segment) {
		mustProbe(t, s, s.first != nil) // a creator uses its segment before it has a name
		a, b := locks(t, s), locks(t, s)
		mustProbe(t, s, true)
		mustTry(t, a, 1, true)
		mustTry(t, a, 1, true) // our own never conflicts
		mustTry(t, b, 1, false)
		mustTry(t, b, 0, true)
		mustTry(t, b, 2, true)
		mustProbe(t, s, true, 0, 1, 2)
		fatal.If(t, b.Unlock(2))
		mustProbe(t, s, true, 0, 1)
		mustTry(t, a, 2, true)
		expect.Gives(a.LastUser())(t, false)
		fatal.If(t, a.Close())
		mustProbe(t, s, true, 0)
		mustTry(t, b, 1, true)
		expect.Fails(a.TryLock(0))(t, ErrClosed)
		expect.NoError(t, a.Close())
		expect.Gives(b.LastUser())(t, true)
		fatal.If(t, b.Close())
		mustProbe(t, s, false)
		c := locks(t, s)
		mustTry(t, c, 0, true)
	})
}

// Ensure that a probe finds each of many locks in a full table, in any order of locking.
func TestProbeMany(t *testing.T) {
	o := small()
	o.Dir, o.ClientRecords = tempDir(t), MaxClientRecords
	s := create(t, o)
	ro := open(t, s.Path(), OpenOptions{ReadOnly: true})
	var held []uint32
	for k := range uint32(300) {
		r := k * 2741 % MaxClientRecords // a prime: scattered
		mustTry(t, locks(t, s), r, true)
		held = append(held, r)
	}
	one := locks(t, s)
	for r := uint32(1000); r < 1020; r++ { // neighbours of one owner; the kernel keeps them separate
		if ok, _ := one.TryLock(r); ok {
			held = append(held, r)
		}
	}
	slices.Sort(held)
	mustProbe(t, ro, true, held...)
}

// Ensure that the lock description is close-on-exec and not the data description, so that neither
// exec nor a child with the data descriptor keeps it.
func TestLockDescriptionIsOwn(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	l := locks(t, s).(*fileLocks)
	mustTry(t, l, 1, true)
	flags, err := unix.FcntlInt(uintptr(l.fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v", flags, err)
	}
	if l.fd == s.FD() {
		t.Error("the lock description is the data description")
	}
	// A child that inherits the data descriptor outlives the locks, which must be free.
	data := os.NewFile(uintptr(dup(t, s.FD())), "data")
	defer data.Close()
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{data}
	fatal.If(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	mustProbe(t, s, true, 1)
	l.Close()
	mustProbe(t, s, false)
	mustTry(t, locks(t, s), 1, true)
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	own := fatal.Value(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
	return own
}

// Ensure that a process that opens a cache by name while its last user removes it gets ErrNotFound,
// and not a cache that no other process will see. An attached process may register any number of
// times. Remove does not remove another file of that name.
func TestLastUserRace(t *testing.T) {
	o := small()
	o.Dir, o.UnlinkLast = tempDir(t), true
	s := create(t, o)
	l := locks(t, s)
	late := open(t, s.Path(), OpenOptions{}) // between open and lock
	fatal.Gives(l.LastUser())(t, true)
	done := make(chan error, 1)
	go func() {
		_, err := late.NewLocks() // meets the exclusive lock: waits for the last user
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	fatal.If(t, s.Remove())
	expect.Error(t, <-done, ErrNotFound, "last user")
	l.Close()
	expect.Fails(late.NewLocks())(t, ErrNotFound)

	next := create(t, o) // the name is free again
	expect.Error(t, s.Remove(), ErrNotFound, "another file")
	first := locks(t, next)
	attached := open(t, next.Path(), OpenOptions{})
	second := locks(t, attached)
	fatal.If(t, next.Remove())
	second.Close()
	locks(t, attached) // had locks before: continues without a name
	first.Close()
}

// Ensure that a last user that only checked (gc, dry run) does not keep others out.
func TestLastUserLooksOnly(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	l := locks(t, s)
	fatal.Gives(l.LastUser())(t, true)
	time.AfterFunc(30*time.Millisecond, func() { l.Close() })
	locks(t, open(t, s.Path(), OpenOptions{}))
}

// Ensure that the creator is a user before the file has a name: at no moment could another process
// be the last user.
func TestCreatorIsUser(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	other := open(t, s.Path(), OpenOptions{})
	fatal.Gives(locks(t, other).LastUser())(t, false)
	before := descriptors(t)
	l := locks(t, s) // the description that was opened at creation
	expect.Equal(t, descriptors(t), before, "descriptors")
	l.Close()
}

// descriptors counts the open files of this process under /dev/shm.
func descriptors(t *testing.T) int {
	t.Helper()
	links := fatal.Value(filepath.Glob("/proc/self/fd/*"))(t)
	n := 0
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "/dev/shm/shm-test-") {
			n++
		}
	}
	return n
}
