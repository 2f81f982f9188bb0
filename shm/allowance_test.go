package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm/memory"
)

// machine is memory as the kernel would count it.
type machine struct {
	limit, used atomic.Uint64
	looks       atomic.Int64
}

func newMachine(limit uint64) *machine {
	m := new(machine)
	m.limit.Store(limit)
	return m
}

// client makes the allowance of a live client whose memory is the machine.
func (m *machine) client(t *testing.T, s *Segment, group uint32) *memory.Allowance {
	t.Helper()
	l, record := locks(t, s), uint32(0)
	for ok := false; ; record++ {
		var err error
		if ok, err = l.TryLock(record); err != nil {
			t.Fatal(err)
		}
		if ok {
			break
		}
	}
	if high := s.ClientsHigh(); high.Load() <= uint64(record) {
		high.Store(uint64(record) + 1)
	}
	a := s.NewAllowance(record)
	a.Group = func() uint32 { return group }
	a.Usable = func(time.Duration) (memory.Space, error) {
		m.looks.Add(1)
		limit, used := m.limit.Load(), m.used.Load()
		return memory.Space{Left: limit - min(limit, used),
			Text: fmt.Sprintf("the test has %d of %d", used, limit)}, nil
	}
	return a
}

// fill draws n bytes and uses them. It returns false when the draw is refused.
func (m *machine) fill(t *testing.T, a *memory.Allowance, n uint64) bool {
	drawn, err := a.Draw(n)
	if errors.Is(err, ErrFull) {
		return false
	}
	if err != nil || drawn < n {
		t.Error(drawn, err)
	}
	m.used.Add(n)
	a.Settle(drawn)
	return true
}

// Ensure that clients of one segment share a grant, that one of them checks after 64 MiB of common
// fills, and that each checks after 64 MiB of its own.
func TestAllowanceIsShared(t *testing.T) {
	s := create(t, Options{Samples: 1, SampleBytes: 1})
	m := newMachine(1 << 40)
	var clients []*memory.Allowance
	for range 8 {
		clients = append(clients, m.client(t, s, 7))
	}
	for k, a := range clients { // each checks at first
		if !m.fill(t, a, 1) || m.looks.Load() != int64(k)+1 {
			t.Fatalf("%d looks of %d clients", m.looks.Load(), k+1)
		}
	}
	m.looks.Store(0)
	const n, fills = 1<<20 - 8192, 1000 // 1 MiB with the page it may begin in, less one
	for k := range fills {
		if !m.fill(t, clients[k%2], n) {
			t.Fatal("refused")
		}
	}
	if looks := m.looks.Load(); looks < fills/64 || looks > 2*fills/64+2 {
		t.Errorf("%d looks for %d MiB of fills by two clients", looks, fills)
	}
	for r := range uint32(8) {
		expect.Equal(t, s.Drawn(r).Load(), 0, "bytes of client %d drawn and not settled", r)
	}
}

// Ensure that any number of concurrent clients, with samples of any size, stay above the floor, get
// near it, and continue when memory is free again.
func TestAllowanceNeverPassesTheFloor(t *testing.T) {
	for _, size := range []uint64{3000, 150_528, 2 << 20, 40 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const clients = 16
			s := create(t, Options{Samples: 1, SampleBytes: 1})
			m := newMachine(1 << 30)
			var group sync.WaitGroup
			for range clients {
				a := m.client(t, s, 7)
				group.Go(func() {
					for !t.Failed() {
						n := size - rand.Uint64N(size/2)
						drawn, err := a.Draw(n)
						if err != nil {
							return
						}
						if m.used.Add(n) > m.limit.Load() {
							t.Errorf("%d bytes of %d are taken", m.used.Load(), m.limit.Load())
						}
						a.Settle(drawn)
					}
				})
			}
			group.Wait()
			if left := m.limit.Load() - m.used.Load(); left > 5*(size+8192) && left > 1<<20 {
				t.Errorf("%d bytes are left for samples of %d", left, size)
			}
			a := m.client(t, s, 7)
			for m.fill(t, a, size) { // clients that were refused together had counted each other's draws: so little is left
				if m.used.Load() > m.limit.Load() {
					t.Fatal("filled where there is no memory")
				}
			}
			m.limit.Add(1 << 30)
			if !m.fill(t, a, size) {
				t.Error("memory is back, and fills are refused")
			}
		})
	}
}

// Ensure that a check counts bytes that live clients have drawn and not settled.
func TestAllowanceCountsFillsUnderWay(t *testing.T) {
	s := create(t, Options{Samples: 1, SampleBytes: 1})
	m := newMachine(100 << 20)
	slow, quick := m.client(t, s, 7), m.client(t, s, 7)
	drawn := fatal.Value(slow.Draw(20 << 20))(t)
	if m.fill(t, quick, 21<<20) {
		t.Error("a quarter of 80 MiB is 20")
	}
	if !m.fill(t, quick, 19<<20) {
		t.Error("a quarter of 80 MiB is 20, refused 19")
	}
	slow.Settle(drawn)
	dead := s.ClientsHigh().Load()
	s.Drawn(uint32(dead)).Store(1 << 40) // a dead client's: its lock is free
	s.ClientsHigh().Store(dead + 1)
	if !m.fill(t, quick, 15<<20) {
		t.Error("what a dead client had drawn counts")
	}
	if a := s.NewAllowance(uint32(dead)); s.Drawn(uint32(dead)).Load() != 0 || a == nil {
		t.Error("the next client of a record has what the last one had drawn")
	}
}

// Ensure that a grant is for one group of processes: another group checks by itself, also when both
// have the same word.
func TestAllowanceOfGroups(t *testing.T) {
	s := create(t, Options{Samples: 1, SampleBytes: 1})
	large, small := newMachine(1<<40), newMachine(1<<20)
	for _, group := range []uint32{8, 7 + AllowanceWords} {
		a, b := large.client(t, s, 7), small.client(t, s, group)
		for range 3 {
			if !large.fill(t, a, 1<<20) {
				t.Error("refused where there is memory")
			}
			if small.fill(t, b, 1<<20) {
				t.Errorf("group %d takes what was granted to group 7", group)
			}
			if small.used.Load() == 0 && !small.fill(t, b, 4096) {
				t.Errorf("group %d has memory and is refused", group)
			}
		}
		small.used.Store(0)
	}
	// A process that moves to another group finds that after 64 MiB of its own fills, although
	// others of its old group check.
	moved, other := large.client(t, s, 7), large.client(t, s, 7)
	if !large.fill(t, moved, 1) {
		t.Fatal("refused")
	}
	moved.Group = func() uint32 { return 9 }
	moved.Usable = func(time.Duration) (memory.Space, error) { return memory.Space{Text: "nothing"}, nil }
	filled := 0
	for ; filled < 200 && large.fill(t, moved, 1<<20); filled++ {
		if !large.fill(t, other, 30<<20) {
			t.Fatal("refused")
		}
	}
	if filled < 32 || filled > 64 {
		t.Errorf("%d MiB were filled after the process had moved to a group without memory", filled)
	}
}

// Ensure that an old answer of the kernel may say that memory is free, and only a new one that it is short. A draw asks
// the kernel again.
func TestOldLooks(t *testing.T) {
	s := create(t, Options{Samples: 1, SampleBytes: 1})
	a := newMachine(0).client(t, s, 7)
	old, now := uint64(0), uint64(0)
	a.Usable = func(age time.Duration) (memory.Space, error) {
		if age > 0 {
			return memory.Space{Left: old, Text: "old"}, nil
		}
		return memory.Space{Left: now, Text: "new"}, nil
	}
	for _, one := range []struct {
		old, now   uint64
		room, draw error
	}{{0, 0, ErrFull, ErrFull}, {1 << 30, 0, nil, ErrFull}, {0, 1 << 30, nil, nil}} {
		old, now = one.old, one.now
		if err := a.Room(4096); !errors.Is(err, one.room) {
			t.Errorf("%+v: room: %v", one, err)
		}
		drawn, err := a.Draw(4096)
		if !errors.Is(err, one.draw) {
			t.Errorf("%+v: draw: %v", one, err)
		}
		a.Settle(drawn)
	}
}

// Ensure that a check grants nothing if another check has overtaken it, even if the word has its
// old value.
func TestAllowanceOvertaken(t *testing.T) {
	s := create(t, Options{Samples: 1, SampleBytes: 1})
	m := newMachine(100 << 20)
	slow, quick := m.client(t, s, 7), m.client(t, s, 7)
	if !m.fill(t, quick, 20<<20) { // more than the rest of the grant: nothing is left
		t.Fatal("refused")
	}
	see, overtaken := slow.Usable, false
	slow.Usable = func(time.Duration) (memory.Space, error) {
		space, err := see(0)
		if !overtaken {
			overtaken = true
			if !m.fill(t, quick, 14<<20) { // leaves nothing again
				t.Error("refused")
			}
			m.used.Add(40 << 20)
		}
		return space, err
	}
	if m.fill(t, slow, 15<<20) {
		t.Error("granted on what was seen before another client took it")
	}
}

// Ensure that a reserved segment and one on the heap never refuse a fill, and never check.
func TestAllowanceOfReserved(t *testing.T) {
	heap := fatal.Value(NewHeap(small()))(t)
	none := newMachine(0)
	for _, s := range []*Segment{heap, create(t, Options{Samples: 1, SampleBytes: 1, Reserve: true})} {
		if n, err := none.client(t, s, 7).Draw(1 << 30); n != 0 || err != nil || none.looks.Load() != 0 {
			t.Error(n, err, none.looks.Load())
		}
	}
	if none.fill(t, none.client(t, create(t, Options{Samples: 1, SampleBytes: 1}), 7), 1) {
		t.Error("filled without memory")
	}
}
