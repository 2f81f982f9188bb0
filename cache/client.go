package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Options of Attach. The zero value is for a Go program.
type Options struct {
	Label string    // shown by stats, at most 63 bytes; "": the program's name
	Kind  uint32    // shown by stats; 0: shm.KindGo
	Locks shm.Locks // nil: opened from the segment. For tests that end a client as death would: by closing its locks
}

// adoptAtAttach bounds how long Attach works at the clear that the last owner of its record died in.
const adoptAtAttach = time.Second

// Attach makes a client of a segment: it takes an owner number, and takes back what the number's last owner left claimed. On a segment that is
// attached read-only, or where the process cannot open locks of its own, the client is read-only: it reads, uncounted.
//
// The segment stays the caller's and MUST outlive the Cache; several Caches on one segment are as many clients. ErrClients when the table is full of live
// clients, ErrNotFound when a named cache lost its name meanwhile, ErrSystem.
func Attach(seg *shm.Segment, o Options) (*Cache, error) {
	c := &Cache{seg: seg, layout: seg.WordLayout(), samples: seg.Samples, slots: seg.Slots, stride: seg.SlotStride,
		sampleBytes: seg.Header.SampleBytes, units: seg.Units(), variable: seg.Variable(), readOnly: seg.ReadOnly(), locks: o.Locks}
	if !c.variable {
		c.units = 0
		if c.policy = policy.FirstIndices(c.slots); seg.FirstCome() {
			c.policy = policy.FirstCome(c.slots)
		}
	}
	for k := range c.stripes {
		c.stripes[k].countIn(&c.stripes[k].uncounted[0], &c.stripes[k].uncounted[1])
	}
	if !c.readOnly {
		if err := c.register(o); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// register makes the handle a client; see docs/spec/protocol.md, Register.
func (c *Cache) register(o Options) (err error) {
	if c.locks == nil {
		if c.locks, err = c.seg.NewLocks(); errors.Is(err, shm.ErrReadOnly) {
			c.readOnly = true
			return nil
		} else if err != nil {
			return err
		}
	}
	if err := c.takeRecord(); err != nil {
		c.locks.Close()
		return err
	}
	fault.At("register.locked")
	for k := range c.stripes {
		c.stripes[k].countIn(c.seg.Counter(c.record, k, shm.Hits), c.seg.Counter(c.record, k, shm.Misses))
	}
	for high := c.seg.ClientsHigh(); ; {
		if v := high.Load(); v >= uint64(c.owner) || high.CompareAndSwap(v, uint64(c.owner)) {
			break
		}
	}
	// Before anything else: the number is about to mean somebody else.
	c.reclaimRecord(c.record, shm.Recovered)
	if p := shm.Phase(c.seg.Phase().Load()); p.Clearing() && p.Owner() == c.owner {
		if _, err := c.adoptClear(p, adoptAtAttach); err != nil {
			c.locks.Close()
			return err
		}
	}
	c.writeIdentity(o)
	c.allowance = c.seg.NewAllowance(c.record)
	fault.At("register.done")
	return nil
}

// takeRecord locks the first record that is free.
func (c *Cache) takeRecord() error {
	for r := range c.seg.ClientRecords {
		ok, err := c.locks.TryLock(r)
		if err != nil {
			return err
		}
		if ok {
			c.record, c.owner = r, r+1
			return nil
		}
	}
	return fmt.Errorf("%w: all %d client records are in use; end some of the processes, or create the cache with more client records",
		shm.ErrClients, c.seg.ClientRecords)
}

// DefaultLabel is the label of a client that gives none: the program's name.
func DefaultLabel() string { return filepath.Base(os.Args[0]) }

// writeIdentity says who has the record: for people, never for decisions.
func (c *Cache) writeIdentity(o Options) {
	if o.Kind == 0 {
		o.Kind = shm.KindGo
	}
	if o.Label == "" {
		o.Label = DefaultLabel()
	}
	var label [shm.ClientLabelBytes]byte
	copy(label[:len(label)-1], o.Label)
	for k := 0; k < len(label); k += 8 {
		var v uint64
		for b := range 8 {
			v |= uint64(label[k+b]) << (8 * b)
		}
		c.seg.ClientWord(c.record, shm.ClientLabel+uint64(k)).Store(v)
	}
	c.seg.ClientWord(c.record, shm.ClientPIDNamespace).Store(pidNamespace())
	c.seg.ClientWord(c.record, shm.ClientStartTicks).Store(startTicks())
	c.seg.ClientWord(c.record, shm.ClientRegistered).Store(uint64(time.Now().UnixNano()))
	c.seg.ClientWord(c.record, shm.ClientRegistrations).Add(1)
	c.seg.ClientWord(c.record, shm.ClientPID).Store(uint64(uint32(os.Getpid())) | uint64(o.Kind)<<32)
}

// pidNamespace returns the inode of our pid namespace; 0 unknown.
func pidNamespace() uint64 {
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// startTicks returns when this process started, field 22 of /proc/self/stat; 0 unknown.
func startTicks() uint64 {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[19], 10, 64)
	return ticks
}

// Close ends the client: it waits for operations under way, gives up open claims, and frees the owner number. With unlink-last the file
// goes too if nobody else uses it. Calls after it return ErrClosed; a second Close waits for the first and returns the same.
//
// Operations that wait (Set with Wait, Clear) end with ErrClosed. The segment is not closed.
func (c *Cache) Close() error {
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.shut {
		return c.closeErr
	}
	c.shut = true
	c.closed.Store(true)
	for k := range c.stripes { // nobody newly stays inside any more
		for wait := (backoff{}); c.stripes[k].inside() != 0; {
			wait.sleep()
		}
		if raceDetector {
			c.stripes[k].left.Load() // after the last hit was seen
		}
	}
	if c.readOnly {
		return nil
	}
	c.reclaimRecord(c.record, shm.Aborted)
	c.seg.Drawn(c.record).Store(0)
	pid := c.seg.ClientWord(c.record, shm.ClientPID)
	pid.Store(pid.Load() >> 32 << 32)
	c.closeErr = errors.Join(c.unlinkLast(), c.locks.Close())
	return c.closeErr
}

// unlinkLast removes a cache that goes with its last user, if that is us.
func (c *Cache) unlinkLast() error {
	if c.seg.Header.Flags&shm.FlagUnlinkLast == 0 {
		return nil
	}
	last, err := c.locks.LastUser()
	if err != nil || !last {
		return err
	}
	if err := c.seg.Remove(); !errors.Is(err, shm.ErrNotFound) {
		return err
	}
	return nil // somebody removed it already, and perhaps made another
}
