package shm

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Allowance lets one client draw on the memory that all clients of a segment may fill.
// docs/spec/protocol.md, Memory, has the rules. It is safe for concurrent use.
type Allowance struct {
	seg    *Segment
	record uint32
	// own is the number of bytes that this client may draw before it checks the memory itself. It
	// begins at 0, so that clients with short lives check too.
	own   atomic.Int64
	group atomic.Uint32 // group of this process at its last check

	// Group names the group of processes that this one belongs to. Usable asks the kernel how much
	// memory may be filled; its answer may be as old as age. Tests replace them.
	Group  func() uint32
	Usable func(age time.Duration) (Space, error)
}

// looked is the last answer of the kernel: it takes a dozen files, and a server asks for each of its caches.
var looked struct {
	sync.Mutex
	at    time.Time
	space Space
}

// lookAge is how old the answer may be that says that memory is free. That it is short, a new one says.
const lookAge = 100 * time.Millisecond

// usableNow asks the kernel, unless it has answered within age.
func usableNow(age time.Duration) (Space, error) {
	looked.Lock()
	defer looked.Unlock()
	if age > 0 && time.Since(looked.at) < age {
		return looked.space, nil
	}
	space, err := kernel{"/"}.usable()
	if err == nil {
		looked.at, looked.space = time.Now(), space
	}
	return space, err
}

// NewAllowance returns the allowance of the client that owns a record. It resets the bytes that the
// record's last owner had drawn.
func (s *Segment) NewAllowance(record uint32) *Allowance {
	s.Drawn(record).Store(0)
	return &Allowance{seg: s, record: record, Group: kernel{"/"}.group, Usable: usableNow}
}

// group returns a number for the processes whose memory the kernel charges to the same cgroups,
// seen from the same namespace.
func (k kernel) group() uint32 {
	text, _ := os.ReadFile(filepath.Join(k.root, "/proc/self/cgroup"))
	var st unix.Stat_t
	if unix.Stat(filepath.Join(k.root, "/proc/self/ns/cgroup"), &st) == nil {
		text = strconv.AppendUint(text, st.Ino, 10)
	}
	return crc32.Checksum(text, Castagnoli)
}

// usable returns how much may be filled under the tightest limit.
func (k kernel) usable() (Space, error) {
	r, err := k.tightest()
	return r.space(), err
}

// grant returns how many bytes may be allocated before the next check of the memory. It returns
// ErrFull, with the numbers, when that is 0.
func (k kernel) grant() (uint64, error) {
	space, err := k.usable()
	granted := grantOf(space.Left) / uint64(os.Getpagesize()) * uint64(os.Getpagesize())
	if err == nil && granted == 0 {
		return 0, fail(ErrFull, "%s", space.Text)
	}
	return granted, err
}

// grantOf returns which part of the usable memory clients may fill before the next check.
func grantOf(usable uint64) uint64 { return min(usable/GrantDivisor, GrantMax) }

// Draw asks for the pages of a place of n bytes. It returns how many bytes the caller MUST Settle
// when the pages are allocated, or when they never will be. It returns 0 if the payload was
// reserved at creation or lies on the heap. Errors: ErrFull, with the numbers, when memory is
// short; ErrSystem.
func (a *Allowance) Draw(n uint64) (uint64, error) {
	return a.draw(withPages(n))
}

// withPages returns the most bytes of pages that a place of n bytes takes: it may begin inside a page.
func withPages(n uint64) uint64 {
	page := uint64(os.Getpagesize())
	return roundUp(n, page) + page
}

// limited says whether fills of this client allocate memory that others may take.
func (a *Allowance) limited() bool {
	return a != nil && a.seg.file != nil && a.seg.disk == nil && a.seg.Header.Flags&FlagReserved == 0
}

// draw asks for n bytes, a multiple of GrantUnit.
func (a *Allowance) draw(n uint64) (uint64, error) {
	if !a.limited() {
		return 0, nil
	}
	a.seg.Drawn(a.record).Add(n) // before the grant shrinks: a check counts these bytes in one of the two
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

// checkMemory asks the kernel how much memory is usable. It draws n bytes and grants a part of the
// rest to all clients of the group. It returns false if another client has changed the grant
// first.
func (a *Allowance) checkMemory(n uint64) (bool, error) {
	group := a.Group()
	a.group.Store(group)
	word := a.seg.Grant(group)
	before := Grant(word.Load())
	left, err := a.leftFor(n, a.othersDrawn(n), 0)
	if err != nil {
		return false, err
	}
	grant := max(grantOf(left), n) - n
	if !word.CompareAndSwap(uint64(before), uint64(NewGrant(uint16(grant/GrantUnit), before.Checks()+1, group))) {
		return false, nil
	}
	a.own.Store(GrantMax)
	return true, nil
}

// leftFor asks the kernel how much memory is usable, less what other fills have drawn. Errors: ErrFull, with the numbers,
// if that is too little for n bytes; ErrSystem.
func (a *Allowance) leftFor(n, others uint64, age time.Duration) (left uint64, err error) {
	space, err := a.Usable(age)
	if err != nil {
		return 0, err
	}
	left = space.Left - min(space.Left, others)
	if n > left/FillDivisor {
		return 0, fail(ErrFull,
			"%s, less %s that other fills are about to take; %s is needed, and one fill may take at most a quarter of "+
				"what is left; samples are not cached until more is free",
			space.Text, size(others), size(n))
	}
	return left, nil
}

// Room says whether memory and tmpfs have the pages of a place of n bytes now: nil, or ErrFull with the numbers. It draws
// nothing. Errors: also ErrSystem.
func (a *Allowance) Room(n uint64) error {
	if !a.limited() {
		return nil
	}
	n = withPages(n)
	if err := a.seg.roomInTmpfs(n); err != nil {
		return err
	}
	group := a.group.Load()
	if g := Grant(a.seg.Grant(group).Load()); a.own.Load() >= int64(n) && g.Group() == group && g.Left() >= n/GrantUnit {
		return nil // Draw would not ask the kernel either
	}
	others := a.othersDrawn(0)
	if _, err := a.leftFor(n, others, lookAge); err == nil {
		return nil
	}
	_, err := a.leftFor(n, others, 0)
	return err
}

// roomInTmpfs returns ErrFull, with the numbers, if the tmpfs of the segment has fewer than n bytes free.
func (s *Segment) roomInTmpfs(n uint64) error {
	defer runtime.KeepAlive(s)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.FD(), &fs); err != nil {
		return fail(ErrSystem, "statfs %s: %w", s.describe(), err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); fs.Blocks != 0 && free < n { // 0: no limit
		return fail(ErrFull, "the tmpfs of %s has %s free of %s; %s is needed; samples are not cached until more is free",
			s.describe(), size(free), size(fs.Blocks*uint64(fs.Bsize)), size(n))
	}
	return nil
}

// othersDrawn adds up the bytes that live clients have drawn and not settled, less n bytes of this
// client.
func (a *Allowance) othersDrawn(n uint64) uint64 {
	sum := a.seg.Drawn(a.record).Load() - n
	for r := range a.seg.RecordsUsed() {
		if drawn := a.seg.Drawn(r).Load(); drawn != 0 && r != a.record && a.seg.alive(r) {
			sum += drawn
		}
	}
	return sum
}

// alive says whether a client holds the lock of a record.
func (s *Segment) alive(record uint32) bool {
	_, _, held, err := firstLock(s.FD(), RecordLockByte(record), RecordLockByte(record))
	return held || err != nil
}

// Settle says that n drawn bytes are allocated, or never will be.
func (a *Allowance) Settle(n uint64) {
	if n != 0 {
		a.seg.Drawn(a.record).Add(-n)
	}
}
