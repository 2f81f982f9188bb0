package memory

import (
	"fmt"
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

// Account is what an allowance knows of its segment.
type Account struct {
	Own    *atomic.Uint64                    // bytes that this client has drawn and not settled
	Grant  func(group uint32) *atomic.Uint64 // word of a group of processes
	Others func() uint64                     // bytes that other live clients have drawn and not settled
	// Usable asks the kernel how much memory may be filled; its answer may be as old as age.
	Usable func(age time.Duration) (Space, error)
	File   *os.File // file of the segment, on a tmpfs
	Name   string   // name of the segment in messages
	Full   error    // error that says that memory is short; those of Draw and Room wrap it
}

// Allowance lets one client draw on the memory that all clients of a segment may fill.
// docs/spec/protocol.md, Memory, has the rules. It is safe for concurrent use. The zero value and
// nil limit nothing.
type Allowance struct {
	account Account
	// own is the number of bytes that this client may draw before it checks the memory itself. It
	// begins at 0, so that clients with short lives check too.
	own   atomic.Int64
	group atomic.Uint32 // group of this process at its last check

	// Group names the group of processes that this one belongs to, and Usable is that of the account.
	// Tests replace them.
	Group  func() uint32
	Usable func(age time.Duration) (Space, error)
}

// NewAllowance returns the allowance of a client that has drawn nothing.
func NewAllowance(a Account) *Allowance {
	return &Allowance{account: a, Group: kernel{"/"}.group, Usable: a.Usable}
}

// looked is the last answer of the kernel: it takes a dozen files, and a server asks for each of
// its caches.
var looked struct {
	sync.Mutex
	at    time.Time
	space Space
}

// lookAge is how old the answer may be that says that memory is free. That it is short, a new one
// says.
const lookAge = 100 * time.Millisecond

// Usable returns how much may be filled under the tightest limit, promises not subtracted. It asks
// the kernel, unless it has done so within age. Errors: those of ReadLimits.
func Usable(age time.Duration) (Space, error) {
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

func (k kernel) usable() (Space, error) {
	limits, err := k.limits()
	if err != nil {
		return Space{}, err
	}
	return limits.Tightest(func(Level) Sum { return Sum{} }), nil
}

// group returns a number for the processes whose memory the kernel charges to the same cgroups,
// seen from the same namespace.
func (k kernel) group() uint32 {
	text, _ := os.ReadFile(filepath.Join(k.root, "/proc/self/cgroup"))
	var st unix.Stat_t
	if unix.Stat(filepath.Join(k.root, "/proc/self/ns/cgroup"), &st) == nil {
		text = strconv.AppendUint(text, st.Ino, 10)
	}
	return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
}

// Granted returns which part of the usable memory may be filled before the next check.
func Granted(usable uint64) uint64 { return min(usable/GrantDivisor, GrantMax) }

// grant is a word of the allowance: what the clients of a group may draw before one of them checks
// the memory. Left has 16 bits, in units of grantUnit; checks 16 bits (modulo 2^16); group 32 bits.
type grant uint64

// grantUnit is the unit of a grant: the bytes of the smallest page of any machine.
const grantUnit = 4096

// newGrant packs what is left, in units, the number of checks, and the group.
func newGrant(left, checks uint16, group uint32) grant {
	return grant(uint64(left) | uint64(checks)<<16 | uint64(group)<<32)
}

// left returns how many units clients may draw.
func (g grant) left() uint64 { return uint64(g & 0xffff) }

// checks returns how often clients of the group have checked, modulo 2^16.
func (g grant) checks() uint16 { return uint16(g >> 16) }

// group returns the group that the word belongs to.
func (g grant) group() uint32 { return uint32(g >> 32) }

// Draw asks for the pages of a place of n bytes. It returns how many bytes the caller MUST Settle
// when the pages are allocated, or when they never will be. It returns 0 if nothing is limited.
// Errors: Account.Full, with the numbers, when memory is short; those of Account.Usable.
func (a *Allowance) Draw(n uint64) (uint64, error) { return a.DrawPages(withPages(n)) }

// withPages returns the most bytes of pages that a place of n bytes takes: it may begin inside a
// page.
func withPages(n uint64) uint64 {
	page := uint64(os.Getpagesize())
	return (n+page-1)&^(page-1) + page
}

// limited says whether fills of this client allocate memory that others may take.
func (a *Allowance) limited() bool { return a != nil && a.account.File != nil }

// DrawPages is Draw of n bytes of whole pages.
func (a *Allowance) DrawPages(n uint64) (uint64, error) {
	if !a.limited() {
		return 0, nil
	}
	// before the grant shrinks: a check counts these bytes in one of the two
	a.account.Own.Add(n)
	for check := a.own.Add(-int64(n)) < 0; ; {
		group := a.group.Load()
		word := a.account.Grant(group)
		g := grant(word.Load())
		if check || g.group() != group || g.left() < n/grantUnit {
			drawn, err := a.check(n)
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
		if word.CompareAndSwap(uint64(g), uint64(g)-n/grantUnit) {
			return n, nil
		}
	}
}

// check asks the kernel how much memory is usable. It draws n bytes and grants a part of the rest
// to all clients of the group. It returns false if another client has changed the grant first.
func (a *Allowance) check(n uint64) (bool, error) {
	group := a.Group()
	a.group.Store(group)
	word := a.account.Grant(group)
	before := grant(word.Load())
	left, err := a.leftFor(n, a.account.Own.Load()-n+a.account.Others(), 0)
	if err != nil {
		return false, err
	}
	rest := (max(Granted(left), n) - n) / grantUnit
	after := newGrant(uint16(rest), before.checks()+1, group)
	if !word.CompareAndSwap(uint64(before), uint64(after)) {
		return false, nil
	}
	a.own.Store(GrantMax)
	return true, nil
}

// leftFor asks the kernel how much memory is usable, less what other fills have drawn. Errors:
// Account.Full, with the numbers, if that is too little for n bytes; those of Usable.
func (a *Allowance) leftFor(n, others uint64, age time.Duration) (left uint64, err error) {
	space, err := a.Usable(age)
	if err != nil {
		return 0, err
	}
	left = space.Left - min(space.Left, others)
	if n > left/FillDivisor {
		return 0, fmt.Errorf(
			"%w: %s, less %s that other fills are about to take; %s is needed, and one fill may take at most a quarter of "+
				"what is left; samples are not cached until more is free",
			a.account.Full, space.Text, Size(others), Size(n))
	}
	return left, nil
}

// Room says whether memory and tmpfs have the pages of a place of n bytes now: nil, or Account.Full
// with the numbers. It draws nothing. Errors: also those of Account.Usable and statfs.
func (a *Allowance) Room(n uint64) error {
	if !a.limited() {
		return nil
	}
	n = withPages(n)
	if err := a.roomInTmpfs(n); err != nil {
		return err
	}
	group := a.group.Load()
	g := grant(a.account.Grant(group).Load())
	if a.own.Load() >= int64(n) && g.group() == group && g.left() >= n/grantUnit {
		return nil // Draw would not ask the kernel either
	}
	others := a.account.Own.Load() + a.account.Others()
	if _, err := a.leftFor(n, others, lookAge); err == nil {
		return nil
	}
	_, err := a.leftFor(n, others, 0)
	return err
}

// roomInTmpfs returns Account.Full, with the numbers, if the tmpfs has fewer than n bytes free.
func (a *Allowance) roomInTmpfs(n uint64) error {
	defer runtime.KeepAlive(a.account.File) // otherwise a finalizer may close it during the call
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(a.account.File.Fd()), &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", a.account.Name, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); fs.Blocks != 0 && free < n { // 0: no limit
		return fmt.Errorf("%w: the tmpfs of %s has %s free of %s; %s is needed; samples are not cached until more is free",
			a.account.Full, a.account.Name, Size(free), Size(fs.Blocks*uint64(fs.Bsize)), Size(n))
	}
	return nil
}

// Settle says that n drawn bytes are allocated, or never will be.
func (a *Allowance) Settle(n uint64) {
	if n != 0 {
		a.account.Own.Add(-n)
	}
}
