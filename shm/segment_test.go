package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
)

// small is the least interesting cache.
func small() Options {
	return Options{Samples: 10, Slots: 4, SampleBytes: 100, ClientRecords: 3}
}

// Ensure that a named cache can be created, attached to by name, by path and by descriptor, written through one and read through the others.
func TestCreateOpen(t *testing.T) {
	o := small()
	o.Name = fmt.Sprintf("test-%d", os.Getpid())
	s, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	defer Unlink(o.Name)
	defer s.Close()
	if _, err := Create(o); !errors.Is(err, ErrExists) || !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	a, err := Open(o.Name, OpenOptions{UUID: &s.Header.UUID})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	l, err := s.NewLocks()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := a.NewLocks()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if ok, err := l.TryLock(1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := m.TryLock(1); ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := m.TryLock(2); !ok || err != nil {
		t.Fatal(ok, err)
	}
	p, err := a.ProbeLocks()
	if err != nil || fmt.Sprint(p) != "{[1 2] true false}" {
		t.Fatal(p, err)
	}
	u, err := Create(small())
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	v, err := OpenFD(u.FD(), OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := u.WritePayload([]byte("hello"), 7); err != nil {
		t.Fatal(err)
	}
	if got := string(v.Bytes(7, 5)); got != "hello" {
		t.Fatal(got)
	}
}
