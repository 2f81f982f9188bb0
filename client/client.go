package client

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// Cache is a handle: one attached client of a cache. Create and Attach make it; Close ends it.
type Cache struct {
	c   *cache.Cache
	seg *shm.Segment

	mu       sync.Mutex        // protects inflight
	inflight map[int]*inflight // loads of GetOrLoad under way
}

// Results, flags, states and what Stats returns are those of package cache.
type (
	Result       = cache.Result
	Flags        = cache.Flags
	State        = cache.State
	Stats        = cache.Stats
	ClientInfo   = cache.ClientInfo
	Claim        = cache.Claim
	Verification = cache.Verification
)

const (
	Stored = cache.Stored // stored; of Claim: claimed, go on
	Exists = cache.Exists // the sample is there already; nothing was done
	Busy   = cache.Busy   // another client is filling it, or a clear is under way; nothing was done
	Full   = cache.Full   // no free slot, no arena space, or memory is short; nothing was done
	Out    = cache.Out    // the sample can have no slot (FirstIndices); nothing was done

	Overwrite = cache.Overwrite // replace a sample that is there
	Wait      = cache.Wait      // wait while Busy, up to a minute

	StateEmpty   = cache.StateEmpty
	StateWriting = cache.StateWriting
	StateReady   = cache.StateReady
	StateOut     = cache.StateOut
	StateCorrupt = cache.StateCorrupt

	Whole = cache.Whole // the field of Gather that means whole samples
	Miss  = cache.Miss  // the length that Lengths gives for a sample that is not there
)

// Create makes a cache and attaches to it. name "": it has none and goes with its last process; others get at it by /proc/<pid>/fd/<fd>. Names are 1 to 100 of
// [A-Za-z0-9._-] with an alphanumeric first.
//
// ErrInvalid (every complaint about the options at once), ErrExists, ErrMemory with the numbers, ErrPermission, ErrSystem. On failure nothing is left behind.
func Create(name string, o Options) (*Cache, error) {
	seg, err := shm.Create(o.segment(name))
	if err != nil {
		return nil, err
	}
	c, err := attach(seg, o.Label)
	if err != nil && name != "" {
		err = errors.Join(err, seg.Remove())
	}
	return c, err
}

// Attach attaches to a cache by its name or, with a slash, by path. Without permission to write it is read-only by itself; see ReadOnly.
//
// ErrNotFound, ErrPermission, ErrFormat, ErrVersion, ErrFingerprint, ErrMemory (limits of this process), ErrClients, ErrSystem.
func Attach(nameOrPath string, o AttachOptions) (*Cache, error) {
	seg, err := shm.Open(nameOrPath, shm.OpenOptions{ReadOnly: o.ReadOnly, Fingerprint: o.Fingerprint})
	if err != nil {
		return nil, err
	}
	return attach(seg, o.Label)
}

// AttachFD attaches through a descriptor of the cache, as FD gives it, which stays the caller's: for a child process that got it by exec.Cmd's ExtraFiles.
// Errors as Attach, and ErrInvalid for a descriptor that cannot serve.
func AttachFD(fd int, o AttachOptions) (*Cache, error) {
	seg, err := shm.OpenFD(fd, shm.OpenOptions{ReadOnly: o.ReadOnly, Fingerprint: o.Fingerprint})
	if err != nil {
		return nil, err
	}
	return attach(seg, o.Label)
}

// attach makes the client of a segment, which it owns from here on.
func attach(seg *shm.Segment, label string) (*Cache, error) {
	c, err := cache.Attach(seg, cache.Options{Label: label})
	if err != nil {
		return nil, errors.Join(err, seg.Close())
	}
	return &Cache{c: c, seg: seg, inflight: make(map[int]*inflight)}, nil
}

// Remove removes a named cache. Processes that are attached keep it. ErrNotFound, ErrPermission (not a segment, or not ours), ErrSystem.
func Remove(nameOrPath string) error { return shm.Unlink(nameOrPath) }

// Close ends the handle: it waits for calls under way, aborts open claims and unmaps. Views of this handle are invalid afterwards. With UnlinkLast the cache goes too if
// nobody else uses it. Later calls return ErrClosed; a second Close does nothing and returns the same.
func (c *Cache) Close() error { return errors.Join(c.c.Close(), c.seg.Close()) }

// Samples returns the number of samples of the dataset.
func (c *Cache) Samples() int { return c.c.Samples() }

// Slots returns how many samples fit; 0 in a variable-size cache, where that depends on their sizes.
func (c *Cache) Slots() int { return int(c.seg.Slots) }

// SampleBytes returns the bytes of every sample; in a variable-size cache, of the largest accepted.
func (c *Cache) SampleBytes() int { return int(c.seg.Header.SampleBytes) }

// Variable says whether samples differ in size.
func (c *Cache) Variable() bool { return c.seg.Variable() }

// ReadOnly says whether this handle may only read; its reads are not counted.
func (c *Cache) ReadOnly() bool { return c.c.ReadOnly() }

// Path returns where the cache was created or found, for Attach in another process; "" for a cache without a name.
func (c *Cache) Path() string { return c.seg.Path() }

// FD returns the descriptor of the cache, which stays this handle's: to hand on to another process, not to write, lock or close. With it a cache without a name can be
// attached to: AttachFD.
func (c *Cache) FD() int { return c.seg.FD() }

// Get copies a sample into dst and returns its length, and whether it was there; on a miss dst may hold anything. The copy is never torn.
// ErrSchema when dst is too short, with the length needed as the first result; ErrIndex, ErrClosed, ErrCorrupt.
func (c *Cache) Get(i int, dst []byte) (int, bool, error) { return c.c.Get(i, dst) }

// View returns a sample as memory of the cache, and whether it was there. See Memory in the package comment. ErrIndex, ErrClosed, ErrCorrupt.
func (c *Cache) View(i int) ([]byte, bool, error) { return c.c.View(i) }

// Ready goes over the samples that are there, in the order of their indices, with a view of each. Not counted. It ends early when the handle is closed.
func (c *Cache) Ready() iter.Seq2[int, []byte] { return c.c.Ready() }

// Gather copies n samples of a fixed-size cache, row k to dst[k*stride:], and returns how many were there; rows of misses are left alone. hit[k] says which were; it
// may be nil. field is Whole, or the number of a field: then only that field of each is copied. At most threads goroutines copy, fewer when it does not pay.
//
// ErrIndex (nothing was copied: indices are checked first), ErrSchema (variable-size cache, no such field, a stride below the row's bytes, dst too short), ErrInvalid
// (hit too short), ErrClosed, ErrCorrupt.
func (c *Cache) Gather(indices []int, field int, dst []byte, stride int, hit []bool, threads int) (int, error) {
	return c.c.Gather(indices, field, dst, stride, hit, threads)
}

// Lengths writes the lengths of samples as they are now, Miss for those that are not there, and returns how many are. Not counted.
// ErrIndex, ErrInvalid (lengths too short), ErrClosed.
func (c *Cache) Lengths(indices []int, lengths []uint64) (int, error) {
	return c.c.Lengths(indices, lengths)
}

// GatherPacked copies samples of any size: sample indices[k] to dst[offsets[k]:], if it is there and its length is exactly lengths[k]. Otherwise as Gather.
func (c *Cache) GatherPacked(indices []int, dst []byte, offsets, lengths []uint64, hit []bool, threads int) (int, error) {
	return c.c.GatherPacked(indices, dst, offsets, lengths, hit, threads)
}

// Set stores a sample if nobody has. data is copied; in a fixed-size cache it MUST have exactly the sample's size.
// ErrSchema (size), ErrIndex, ErrReadOnly, ErrClosed, ErrInvalid (flags), ErrLost, ErrCorrupt, ErrSystem.
func (c *Cache) Set(i int, data []byte, flags Flags) (Result, error) { return c.c.Set(i, data, flags) }

// SetParts is Set of the parts one behind the other, such as the fields of a sample.
func (c *Cache) SetParts(i int, parts [][]byte, flags Flags) (Result, error) {
	return c.c.SetParts(i, parts, flags)
}

// Claim makes a sample of length bytes the caller's to fill in pieces. The Claim is nil unless the result is Stored, and MUST be ended by its Publish or Abort.
// Errors as Set.
func (c *Cache) Claim(i int, length int, flags Flags) (*Claim, Result, error) {
	return c.c.Claim(i, length, flags)
}

// State returns the state of a sample at this moment. Not counted. ErrIndex, ErrClosed.
func (c *Cache) State(i int) (State, error) { return c.c.State(i) }

// States writes the states of the samples from first on into dst. Not counted. ErrIndex unless all of them are samples; ErrClosed.
func (c *Cache) States(first int, dst []State) error { return c.c.States(first, dst) }

// Verify compares the samples first..first+n-1, as far as they are there, with their checksums. ErrIndex, ErrClosed.
func (c *Cache) Verify(first, n int) (Verification, error) { return c.c.Verify(first, n) }

// Clear empties the cache: Stored when it did, Busy when another clear is under way. It waits for open claims of live clients, this one's too, until ctx ends: then
// ErrTimeout with their number, and the cache is as before. ErrReadOnly, ErrClosed, ErrSystem.
func (c *Cache) Clear(ctx context.Context) (Result, error) { return c.c.Clear(ctx) }

// Recover takes back what dead clients left claimed and returns how many claims that were. Sets do it by themselves where they meet one.
// ErrReadOnly, ErrClosed, ErrSystem.
func (c *Cache) Recover() (int, error) { return c.c.Recover() }

// Stats adds up the counters of all clients, past ones included, and goes over the index. ErrClosed, ErrSystem.
func (c *Cache) Stats() (Stats, error) { return c.c.Stats() }

// Clients lists the clients, past ones whose record nobody has taken since included. ErrClosed, ErrSystem.
func (c *Cache) Clients() ([]ClientInfo, error) { return c.c.Clients() }

// CountPassed adds to the counter "passed": samples outside the schema that a wrapper let through uncached. ErrClosed.
func (c *Cache) CountPassed(n uint64) error { return c.c.CountPassed(n) }
