package client

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
)

// Cache is a handle: one attached client of a cache. Create and Attach make it, and Close ends it.
type Cache struct {
	c    *cache.Cache
	seg  *shm.Segment
	kept atomic.Pointer[order.Kept] // samples of Loads.Keep; nil: all samples
	disk *Disk                      // disk cache of the options; nil: none

	mu       sync.Mutex        // protects inflight
	inflight map[int]*inflight // loads of GetOrLoad that are inflight
}

// In a variable-size cache that evicts, Busy and Full may come after other samples have gone, and after the
// old version of an overwritten one.
const (
	Stored = cache.Stored // stored. Claim: claimed
	Exists = cache.Exists // the sample is READY already; the call did nothing
	Busy   = cache.Busy   // another client fills it, or a clear is running; the call did nothing
	Full   = cache.Full   // no free slot, no arena space, or memory is short; the call did nothing
	Out    = cache.Out    // the sample can have no slot (FirstIndices, or Keep leaves it out); the call did nothing

	Overwrite = cache.Overwrite // replace a READY sample
	Wait      = cache.Wait      // wait while Busy, up to a minute

	StateEmpty   = cache.StateEmpty
	StateWriting = cache.StateWriting
	StateReady   = cache.StateReady
	StateOut     = cache.StateOut
	StateCorrupt = cache.StateCorrupt

	Miss = cache.Miss // the length that Lengths writes for a sample that is not READY
)

// Create makes a cache and attaches to it. Names have 1 to 100 characters of [A-Za-z0-9._-], the
// first alphanumeric. A cache with the name "" ends with its last process; other processes attach
// by /proc/<pid>/fd/<fd>.
//
// Errors: ErrInvalid (all complaints about the options at once), ErrExists, ErrMemory with the
// numbers, ErrPermission, ErrSystem. After a failure no cache is left.
func Create(name string, o Options) (*Cache, error) {
	if err := o.checkNumbers(); err != nil {
		return nil, err
	}
	seg, err := shm.Create(o.segment(name))
	if err != nil {
		return nil, err
	}
	if seg.Replaced != nil {
		slog.Warn("stocached: an empty cache replaces one of another version, which no process used",
			"because", seg.Replaced)
	}
	c, err := attach(seg, o.Label, "", o.Disk)
	if err != nil && name != "" {
		err = errors.Join(err, seg.Remove())
	}
	return c, err
}

// Attach attaches to a cache by its name or, with a slash, by path. Without permission to write,
// the handle is read-only; see Info.
//
// Errors: ErrNotFound, ErrPermission, ErrFormat, ErrVersion, ErrFingerprint, ErrInvalid (another policy
// than asked for), ErrMemory (limits of this process), ErrClients, ErrSystem.
func Attach(nameOrPath string, o AttachOptions) (*Cache, error) {
	seg, err := shm.Open(nameOrPath, shm.OpenOptions{ReadOnly: o.ReadOnly, Fingerprint: o.Fingerprint})
	if err != nil {
		return nil, err
	}
	return attach(seg, o.Label, o.Policy, o.Disk)
}

// AttachFD attaches through a descriptor of the cache, which Info has. The caller keeps the
// descriptor. It is for a child process that got it through exec.Cmd's ExtraFiles. It returns the
// errors of Attach, and ErrInvalid for an unsuitable descriptor.
func AttachFD(fd int, o AttachOptions) (*Cache, error) {
	seg, err := shm.OpenFD(fd, shm.OpenOptions{ReadOnly: o.ReadOnly, Fingerprint: o.Fingerprint})
	if err != nil {
		return nil, err
	}
	return attach(seg, o.Label, o.Policy, o.Disk)
}

// attach makes the client of a segment that has a policy, and owns the segment from then on.
func attach(seg *shm.Segment, label, policy string, disk *Disk) (*Cache, error) {
	var c *cache.Cache
	err := errors.Join(checkPolicy(seg, policy), disk.suits(seg))
	if err == nil {
		c, err = cache.Attach(seg, cache.Options{Label: label})
	}
	if err != nil {
		return nil, errors.Join(err, seg.Close())
	}
	return &Cache{c: c, seg: seg, disk: disk, inflight: make(map[int]*inflight)}, nil
}

// Remove removes a named cache. Attached processes keep it. Errors: ErrNotFound, ErrPermission (no
// segment, or another user's), ErrSystem.
func Remove(nameOrPath string) error { return shm.Unlink(nameOrPath) }

// Close ends the handle: it waits for calls under way, aborts open claims and unmaps. Views of this
// handle are invalid afterwards. With UnlinkLast it removes the cache if no other client uses it.
// Later calls return ErrClosed; a second Close does nothing and returns the same error.
func (c *Cache) Close() error { return errors.Join(c.c.Close(), c.seg.Close()) }

// Get copies a sample into dst. It returns its length, and whether it was READY. On a miss dst may
// hold anything. The copy is never torn. Errors: ErrSchema when dst is too short (the first result
// is the length), ErrIndex, ErrClosed, ErrCorrupt.
func (c *Cache) Get(i int, dst []byte) (int, bool, error) { return c.c.Get(i, dst) }

// View returns a sample as memory of the cache, and whether it was READY. See Memory in the package
// comment. Errors: ErrIndex, ErrInvalid in a cache that evicts, ErrClosed, ErrCorrupt.
func (c *Cache) View(i int) ([]byte, bool, error) { return c.c.View(i) }

// Ready iterates over the READY samples in the order of their indices, with a view of each, or a
// copy in a cache that evicts. It counts no hits. It ends early when the handle is closed.
func (c *Cache) Ready() iter.Seq2[int, []byte] { return c.c.Ready() }

// Gather copies samples of a fixed-size cache, indices[k] to dst[k*Stride:], and returns how many were
// READY. Rows of misses keep their bytes. It counts hits and misses: load the misses with LoadMissed.
//
// Errors: ErrIndex (indices are checked first, nothing was copied), ErrSchema (variable-size cache,
// no such field, a stride below the row's bytes, dst too short), ErrInvalid (Hit too short),
// ErrClosed, ErrCorrupt.
func (c *Cache) Gather(indices []int, dst []byte, o GatherOptions) (int, error) {
	return c.c.Gather(indices, dst, o)
}

// Lengths writes the current lengths of samples, and Miss for those that are not READY. It returns
// how many are READY, and counts no hits. Errors: ErrIndex, ErrInvalid (lengths too short),
// ErrClosed.
func (c *Cache) Lengths(indices []int, lengths []uint64) (int, error) {
	return c.c.Lengths(indices, lengths)
}

// GatherPacked copies samples of any size. It copies sample indices[k] to dst[offsets[k]:] if it is
// READY and its length is exactly lengths[k]. The rest is as in Gather.
func (c *Cache) GatherPacked(indices []int, dst []byte, offsets, lengths []uint64, hit []bool,
	threads int) (int, error) {
	return c.c.GatherPacked(indices, dst, offsets, lengths, hit, threads)
}

// Set stores a sample that is not READY. It copies data; in a fixed-size cache data MUST have
// exactly the sample's size. Errors: ErrSchema (size), ErrIndex, ErrReadOnly, ErrClosed, ErrInvalid
// (flags), ErrLost, ErrCorrupt, ErrSystem.
func (c *Cache) Set(i int, data []byte, flags Flags) (Result, error) { return c.c.Set(i, data, flags) }

// SetParts is Set of a sample that consists of the parts, one after the other, such as its fields. took is what its
// load took; 0: unknown. A cache with PolicyCost keeps the samples that cost most; others keep the time for
// `stocached advise`. A negative time is ErrInvalid.
func (c *Cache) SetParts(i int, parts [][]byte, flags Flags, took time.Duration) (Result, error) {
	return c.c.SetLoaded(i, parts, flags, took)
}

// Claim claims a sample of length bytes, which the caller fills in pieces. The Claim is nil unless
// the result is Stored. The caller MUST end it by Publish or Abort. It returns the errors of Set.
func (c *Cache) Claim(i int, length int, flags Flags) (*Claim, Result, error) {
	return c.c.Claim(i, length, flags)
}

// Clear empties the cache. It returns Stored, or Busy when another clear is running. It waits for
// open claims of live clients, this one's too. When ctx ends first, it returns ErrTimeout with
// their number, and the cache is as before. Other errors: ErrReadOnly, ErrClosed, ErrSystem.
func (c *Cache) Clear(ctx context.Context) (Result, error) { return c.c.Clear(ctx) }

// Stats adds up the counters of all clients, past ones included, and scans the index. Errors:
// ErrClosed, ErrSystem.
func (c *Cache) Stats() (Stats, error) { return c.c.Stats() }
