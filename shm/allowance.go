package shm

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Allowance is how one client draws on the memory that all clients of a segment may fill: docs/spec/protocol.md, Memory. Any number of goroutines may use it.
type Allowance struct {
	seg    *Segment
	record uint32
	own    atomic.Int64  // bytes that this client may draw before it looks itself; 0 at first, so that many short lives look too
	group  atomic.Uint32 // of this process, when it looked last

	// What the kernel says: which group of processes this one belongs to, and what may be filled. Fields for tests.
	Group  func() uint32
	Usable func() (Space, error)
}

// NewAllowance returns the allowance of the client that owns a record. What the record's last owner had drawn is forgotten.
func (s *Segment) NewAllowance(record uint32) *Allowance {
	s.Drawn(record).Store(0)
	k := kernel{"/"}
	return &Allowance{seg: s, record: record, Group: k.group, Usable: k.usable}
}

// group returns a number for the processes whose memory is charged where this one's is: same cgroups, seen from the same namespace.
func (k kernel) group() uint32 {
	text, _ := os.ReadFile(filepath.Join(k.root, "/proc/self/cgroup"))
	var st unix.Stat_t
	if unix.Stat(filepath.Join(k.root, "/proc/self/ns/cgroup"), &st) == nil {
		text = strconv.AppendUint(text, st.Ino, 10)
	}
	return crc32.Checksum(text, Castagnoli)
}

// usable is what may be filled under the tightest limit.
func (k kernel) usable() (Space, error) {
	r, err := k.tightest()
	return r.space(), err
}

// grant is how many bytes of pages may be taken before somebody looks again. ErrFull, with the numbers, when that is none.
func (k kernel) grant() (uint64, error) {
	space, err := k.usable()
	granted := grantOf(space.Left) / uint64(os.Getpagesize()) * uint64(os.Getpagesize())
	if err == nil && granted == 0 {
		return 0, fail(ErrFull, "%s", space.Text)
	}
	return granted, err
}

// grantOf is how much may be taken of what is usable before somebody looks again.
func grantOf(usable uint64) uint64 { return min(usable/GrantDivisor, GrantMax) }

// Draw asks for the pages of a place of n bytes that has none, and returns how many bytes to Settle, once they are taken or will not be. 0: the segment has its pages already, or is on
// the heap. ErrFull, with the numbers, when memory is short; ErrSystem.
func (a *Allowance) Draw(n uint64) (uint64, error) {
	page := uint64(os.Getpagesize())
	return a.draw(roundUp(n, page) + page) // wherever it begins
}

// draw asks for n bytes, a multiple of GrantUnit.
func (a *Allowance) draw(n uint64) (uint64, error) {
	if a == nil || a.seg.file == nil || a.seg.Header.Flags&FlagReserved != 0 {
		return 0, nil
	}
	a.seg.Drawn(a.record).Add(n) // before the allowance falls: a check sees these bytes in one of the two
	for check := a.own.Add(-int64(n)) < 0; ; {
		group := a.group.Load()
		word := a.seg.Grant(group)
		g := Grant(word.Load())
		if check || g.Group() != group || g.Left() < n/GrantUnit {
			drawn, err := a.checkMemory(n)
			if err != nil {
				a.Settle(n)
				return 0, err
			}
			if drawn {
				return n, nil
			}
			check = false // another client has checked, or drawn
			continue
		}
		if word.CompareAndSwap(uint64(g), uint64(g)-n/GrantUnit) {
			return n, nil
		}
	}
}

// checkMemory asks the kernel how much memory there is, and grants a part of it to all clients of the group, less n bytes for us. false: the word has changed meanwhile.
func (a *Allowance) checkMemory(n uint64) (bool, error) {
	group := a.Group()
	a.group.Store(group)
	word := a.seg.Grant(group)
	before := Grant(word.Load())
	others := a.othersDrawn(n)
	space, err := a.Usable()
	if err != nil {
		return false, err
	}
	left := space.Left - min(space.Left, others)
	if n > left/FillDivisor {
		return false, fail(ErrFull, "%s, less %s that other fills are about to take; %s is needed, and at most a quarter of what is left may be; samples go uncached until there is more",
			space.Text, size(others), size(n))
	}
	grant := max(grantOf(left), n) - n
	if !word.CompareAndSwap(uint64(before), uint64(NewGrant(uint16(grant/GrantUnit), before.Checks()+1, group))) {
		return false, nil
	}
	a.own.Store(GrantMax)
	return true, nil
}

// othersDrawn adds up what live clients have drawn and not yet taken, less n bytes of this one.
func (a *Allowance) othersDrawn(n uint64) uint64 {
	sum := a.seg.Drawn(a.record).Load() - n
	for r := range uint32(min(a.seg.ClientsHigh().Load(), uint64(a.seg.ClientRecords))) {
		if drawn := a.seg.Drawn(r).Load(); drawn != 0 && r != a.record && a.seg.alive(r) {
			sum += drawn
		}
	}
	return sum
}

// alive says whether somebody holds the lock of a client record.
func (s *Segment) alive(record uint32) bool {
	_, _, held, err := firstLock(s.FD(), RecordLockByte(record), RecordLockByte(record))
	return held || err != nil
}

// Settle says that n bytes which were drawn are pages now, or never will be.
func (a *Allowance) Settle(n uint64) {
	if n != 0 {
		a.seg.Drawn(a.record).Add(-n)
	}
}
