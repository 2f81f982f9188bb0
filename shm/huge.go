package shm

import (
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Huge pages: blocks of 2 MiB that processors map by one entry, so that a random read seldom waits for page tables, and no process has page tables to fill.
//
// tmpfs gives them by its mount option huge=, which /dev/shm is mounted without; but since Linux 6.1 whoever maps a file may ask for each block (MADV_COLLAPSE), whatever
// the mount and /sys/kernel/mm/transparent_hugepage/shmem_enabled say, unless that is `deny`. All of this is speed alone: where the kernel refuses, pages are small and everything
// else is the same.
const (
	hugeBytes = 2 << 20               // of amd64, and of arm64 with pages of 4 KiB; elsewhere the kernel finds nothing to do
	hugeSlow  = 20 * time.Millisecond // a block that took longer was looked for among fragments
	hugePause = 50                    // times as long as that took nobody asks again: at most 2 % of the time is lost
)

// hugePagesAllowed says whether the system's administrator has huge pages at all. One who set `never` means us, too, although the kernel would do what we ask.
func (k kernel) hugePagesAllowed() bool {
	lines, err := k.lines("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && len(lines) == 1 && !strings.Contains(lines[0], "[never]")
}

// hugePace is when a segment's clients in this process may ask for huge pages: at once, unless it is told otherwise.
type hugePace struct {
	after atomic.Int64 // on hugeClock; math.MaxInt64: never
}

// hugeClock is a clock that nobody sets; a variable for tests.
var hugeClock = func() time.Duration { return time.Since(started) }

var started = time.Now()

// stop ends asking for good.
func (p *hugePace) stop() { p.after.Store(math.MaxInt64) }

// ask asks for one huge page, unless it is too early, and learns from what came of it.
func (p *hugePace) ask(collapse func() error) {
	began := hugeClock()
	if int64(began) < p.after.Load() {
		return
	}
	err := collapse() // which does not tell a kernel that never does it from a file system that has no room left
	ended := hugeClock()
	if err != nil || ended-began > hugeSlow {
		p.after.Store(int64(ended + (ended-began)*hugePause))
	}
}

// TakeHuge MUST be called for each place in the payload that a fill has just taken, before it writes: blocks that begin in it become huge. Places are taken one
// behind the other, so that is once for each block, while it is (nearly) empty; where they are not, as with first-indices, what is there is copied. What is read
// stays the same, and what is refused is nobody's concern; but a block's pages are taken at once, of which the place may have needed a few only. So they are drawn from the allowance,
// if there is one.
func (s *Segment) TakeHuge(offset, n uint64, a *Allowance) {
	block, end := roundUp(offset, hugeBytes), min(offset+n, s.PayloadBytes)
	if block >= end || s.file == nil {
		return
	}
	defer runtime.KeepAlive(s)
	fd := s.FD()
	for ; block < end && block+hugeBytes <= s.PayloadBytes; block += hugeBytes {
		s.huge.ask(func() error {
			drawn, err := a.draw(hugeBytes)
			if err == nil {
				err = collapse(fd, s.PayloadOffset+block, s.payload[block:block+hugeBytes])
				a.Settle(drawn)
			}
			return err
		})
	}
}

// beginHuge makes the first pages of a file, before anybody has it, and stops at the first block that comes out small, or late: those are for allocate.
func beginHuge(fd int, control []byte) {
	if len(control) < 2*hugeBytes { // one block: a few hundred pages, which the processor keeps in mind
		return
	}
	began := hugeClock()
	for at := 0; at+hugeBytes <= len(control); at += hugeBytes {
		if collapse(fd, uint64(at), control[at:at+hugeBytes]) != nil || hugeClock()-began > hugeSlow*time.Duration(1+at/hugeBytes) {
			return
		}
	}
}

// collapse makes a block of a file, mapped at block, one huge page, whether it has small pages or none. Errors of the system. The kernel does so for a block that has a page at least.
func collapse(fd int, offset uint64, block []byte) error {
	if err := allocate(fd, offset, 4096, nil); err != nil {
		return err
	}
	return adviseHuge(block)
}

// adviseHuge is the system call; a variable for tests.
var adviseHuge = func(block []byte) error { return unix.Madvise(block, unix.MADV_COLLAPSE) }
