package cache

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// Options of Attach. The zero value suits a Go program.
type Options struct {
	Label string // shown by stats, at most 63 bytes; "": the program's name
	Kind  uint32 // shown by stats; 0: shm.KindGo
	// Next says in how many reads a sample is read next, for the policy planned: policy.Candidate. Of a sample
	// that is read before soon, it may return any number below soon. nil: it is not known, and this client
	// evicts nothing from such a cache. Any goroutine may call it.
	Next func(sample, soon uint64) uint64
	// Leaves is called before a sample goes for another one, if Next is given: with what Next said of it. The
	// sample is READY, and Copy of this client may copy it. The eviction may still fail. Any goroutine may
	// call it.
	Leaves func(sample, next uint64)
	Locks  shm.Locks // nil: opened from the segment. Tests end a client as its death would, by closing its locks
}

// adoptAtAttach bounds how long Attach works on a clear in which the last owner of its record died.
const adoptAtAttach = time.Second

// Attach makes a client of a segment. It takes an owner number, and reclaims the claims of the
// number's last owner. The client is read-only, and its reads are not counted, if the segment is
// attached read-only or the process may not open locks.
//
// The caller keeps the segment, which MUST outlive the Cache. Each Cache on a segment is a client.
// Errors: ErrClients when the table is full of live clients, ErrNotFound when a named cache has
// lost its name, ErrSystem.
func Attach(seg *shm.Segment, o Options) (*Cache, error) {
	c := &Cache{seg: seg, layout: seg.WordLayout(), samples: seg.Samples, slots: seg.Slots, stride: seg.SlotStride,
		sampleBytes: seg.Header.SampleBytes, units: seg.Units(),
		variable: seg.Variable(), chains: seg.Chains(), readOnly: seg.ReadOnly(), locks: o.Locks,
		next: o.Next, leaves: o.Leaves, seed: binary.LittleEndian.Uint64(seg.Header.UUID[:])}
	if c.slots > 0 {
		c.units = 0
		c.setPolicy()
	}
	if c.longest = math.MaxUint64; c.chains {
		c.longest = c.slots * c.stride
	}
	c.space = newSpace(c)
	for k := range c.stripes {
		c.stripes[k].hits, c.stripes[k].misses = &c.stripes[k].uncounted[0], &c.stripes[k].uncounted[1]
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
			c.readOnly, c.references = true, false
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
		c.stripes[k].hits = c.seg.Counter(c.record, k, shm.Hits)
		c.stripes[k].misses = c.seg.Counter(c.record, k, shm.Misses)
	}
	for high := c.seg.ClientsHigh(); ; {
		if v := high.Load(); v >= uint64(c.owner) || high.CompareAndSwap(v, uint64(c.owner)) {
			break
		}
	}
	// Before all other steps: other clients still link the number to its last owner.
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

// takeRecord locks the first free record.
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
	return fmt.Errorf("%w: all %d client records are in use; end some of the processes, "+
		"or create the cache with more client records",
		shm.ErrClients, c.seg.ClientRecords)
}

// DefaultLabel is the label of a client without one: the program's name.
func DefaultLabel() string { return filepath.Base(os.Args[0]) }

// writeIdentity writes who has the record. It is only for display; no decision depends on it.
func (c *Cache) writeIdentity(o Options) {
	o.Kind = cmp.Or(o.Kind, shm.KindGo)
	o.Label = cmp.Or(o.Label, DefaultLabel())
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

// pidNamespace returns the inode of our pid namespace; 0 if unknown.
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

// startTicks returns the start time of this process, field 22 of /proc/self/stat; 0 if unknown.
func startTicks() uint64 {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses. The name may contain spaces and
	// parentheses.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[19], 10, 64)
	return ticks
}

// Close ends the client: it waits for operations under way (not for View, which needs no wait), aborts
// open claims and frees the owner number. With unlink-last it removes the file if no other client uses it. Later calls return
// ErrClosed; a second Close waits for the first and returns the same error.
//
// Operations that wait (Set with Wait, Clear) end with ErrClosed. The segment stays attached.
func (c *Cache) Close() error {
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.shut {
		return c.closeErr
	}
	c.shut = true
	c.closed.Store(true)
	for k := range c.stripes { // from now on a new operation leaves at once
		for wait := (backoff{}); c.stripes[k].inside() != 0; {
			wait.sleep()
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

// unlinkLast removes an unlink-last cache if this client is its last user.
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
	return nil // another process has removed it, and perhaps created a new one
}
