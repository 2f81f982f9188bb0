package shm

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// Huge pages are blocks of 2 MiB that one entry of a page table maps. A random read then seldom
// waits for page tables, and processes fill none.
//
// /dev/shm is mounted without huge=, the option that makes tmpfs use them. Since Linux 6.1 a
// process may ask for each mapped block (MADV_COLLAPSE), unless
// /sys/kernel/mm/transparent_hugepage/shmem_enabled is `deny`. Where the kernel refuses, pages are
// small, and only speed differs.
const (
	hugeBytes = 2 << 20 // huge page of amd64, and of arm64 with pages of 4 KiB; on other machines the kernel finds nothing to do
	// The kernel searched fragmented memory for a block that took longer than this.
	hugeSlow = 20 * time.Millisecond
	// After a slow call or a failure we wait this many times its duration. So at most 2 % of the
	// time is lost.
	hugePause = 50
)

// hugePagesAllowed says whether the administrator allows huge pages. We respect `never`, although
// MADV_COLLAPSE would ignore it.
func hugePagesAllowed() bool {
	mode := memory.HugePages("/")
	return mode != "" && mode != "never"
}

// hugePace says when the clients of a segment in this process may ask for huge pages again.
type hugePace struct {
	after atomic.Int64 // on hugeClock; math.MaxInt64: never
}

// hugeClock is a monotonic clock. Tests replace it.
var hugeClock = func() time.Duration { return time.Since(started) }

var started = time.Now()

// stop ends all requests for huge pages.
func (p *hugePace) stop() { p.after.Store(math.MaxInt64) }

// ask requests one huge page, unless the pause is still on. A failed or slow request begins a
// pause.
func (p *hugePace) ask(collapse func() error) {
	began := hugeClock()
	if int64(began) < p.after.Load() {
		return
	}
	err := collapse() // its error does not tell a kernel without support from a full file system
	ended := hugeClock()
	if err != nil || ended-began > hugeSlow {
		p.after.Store(int64(ended + (ended-began)*hugePause))
	}
}

// TakeHuge makes the blocks huge that begin in a place. A fill MUST call it for each place that it
// has just taken, before it writes. Fills take most places in order, so a block is nearly empty at
// that time; with first-indices the kernel copies its content. Readers see no difference, and
// refusals are ignored. A huge block allocates all its pages at once, even if the place needs few,
// so TakeHuge draws them from the allowance. a may be nil.
func (s *Segment) TakeHuge(offset, n uint64, a *memory.Allowance) {
	block, end := roundUp(offset, hugeBytes), min(offset+n, s.PayloadBytes)
	if block >= end || s.file == nil || s.backing != nil {
		return
	}
	defer runtime.KeepAlive(s)
	fd := s.FD()
	for ; block < end && block+hugeBytes <= s.PayloadBytes; block += hugeBytes {
		s.huge.ask(func() error {
			drawn, err := a.DrawPages(hugeBytes)
			if err == nil {
				err = collapse(fd, s.PayloadOffset+block, s.payload[block:block+hugeBytes])
				a.Settle(drawn)
			}
			return err
		})
	}
}

// beginHuge makes the first pages of a new file huge. It stops at the first block that fails or is
// slow; memory.Allocate does the rest. The tables begin at tables.
func beginHuge(fd int, control []byte, tables uint64) {
	// A few hundred pages fit the processor's cache of page table entries, and few client records are in use. A huge page
	// takes milliseconds, which a server of 2,000 small caches would wait for at each of them.
	if uint64(len(control))-tables < hugeBytes {
		return
	}
	began := hugeClock()
	for at := 0; at+hugeBytes <= len(control); at += hugeBytes {
		if collapse(fd, uint64(at), control[at:at+hugeBytes]) != nil ||
			hugeClock()-began > hugeSlow*time.Duration(1+at/hugeBytes) {
			return
		}
	}
}

// collapse makes a block of a file, mapped at block, one huge page. The kernel collapses only a
// block with at least one page, so collapse allocates one first. It returns errors of the system.
func collapse(fd int, offset uint64, block []byte) error {
	if err := memory.Allocate(fd, offset, 4096, nil); err != nil {
		return err
	}
	return adviseHuge(block)
}

// adviseHuge is the system call. Tests replace it.
var adviseHuge = func(block []byte) error { return unix.Madvise(block, unix.MADV_COLLAPSE) }
