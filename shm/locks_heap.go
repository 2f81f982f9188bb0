package shm

import (
	"slices"
	"sync"
)

// heapLocks simulates the kernel's locks for a heap segment.
type heapLocks struct {
	mu        sync.Mutex // protects the fields below
	records   map[uint32]*heapOwner
	users     map[*heapOwner]bool
	server    *heapOwner // holder of the server lock
	exclusive *heapOwner // the last user, until it closes
}

// heapOwner is one Locks.
type heapOwner struct{ table *heapLocks }

func newHeapLocks() *heapLocks {
	return &heapLocks{records: map[uint32]*heapOwner{}, users: map[*heapOwner]bool{}}
}

func (t *heapLocks) newOwner() (Locks, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.exclusive != nil {
		return nil, fail(ErrTimeout, "the last user is leaving")
	}
	o := &heapOwner{t}
	t.users[o] = true
	return o, nil
}

func (t *heapLocks) probe() Probe {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Probe{Users: len(t.users) > 0, Server: t.server != nil}
	for r := range t.records {
		p.Records = append(p.Records, r)
	}
	slices.Sort(p.Records)
	return p
}

func (o *heapOwner) TryLock(record uint32) (bool, error) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if !o.table.users[o] {
		return false, fail(ErrClosed, "lock record %d", record)
	}
	if holder := o.table.records[record]; holder != nil {
		return holder == o, nil
	}
	o.table.records[record] = o
	return true, nil
}

func (o *heapOwner) Unlock(record uint32) error {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if o.table.records[record] == o {
		delete(o.table.records, record)
	}
	return nil
}

func (o *heapOwner) TryServer() (bool, error) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if !o.table.users[o] {
		return false, fail(ErrClosed, "server lock")
	}
	if o.table.server == nil {
		o.table.server = o
	}
	return o.table.server == o, nil
}

func (o *heapOwner) LastUser() (bool, error) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if !o.table.users[o] {
		return false, fail(ErrClosed, "last user")
	}
	if len(o.table.users) > 1 {
		return false, nil
	}
	o.table.exclusive = o
	return true, nil
}

func (o *heapOwner) Close() error {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	delete(o.table.users, o)
	for r, holder := range o.table.records {
		if holder == o {
			delete(o.table.records, r)
		}
	}
	if o.table.server == o {
		o.table.server = nil
	}
	if o.table.exclusive == o {
		o.table.exclusive = nil
	}
	return nil
}
