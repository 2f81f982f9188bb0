package shm

import (
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Segment is an attached segment: its words (Region), its header and its file.
//
// Memory of the segment (words, Bytes) is valid until Close. All methods except Close are safe for
// concurrent use. Close MUST be called after all other calls and all uses of that memory have
// ended.
type Segment struct {
	Region
	Header   Header
	Replaced error // what the segment of another version was whose place a new one has taken; nil: there was none

	file     *os.File // the data description: mapped, so never locked. nil on the heap
	maps     mapping
	huge     hugePace
	path     string // "" if it has none
	readOnly bool
	byName   bool // opened by name or path: see lockFile
	heap     *heapLocks

	backing     Backing // place of the payload; nil: it is in memory
	controlPath string  // path of a shared control part; "": none

	keepsWords atomic.Bool

	mu sync.Mutex // protects the fields below
	// first is the creator's lock description, locked before the file got its name. The first
	// NewLocks returns it.
	first  *fileLocks
	locked bool // NewLocks has succeeded once
	closed bool
}

// Backing is where the payload of a segment lies if it is not in memory. Package diskfile keeps it
// in a file on a disk. Its methods return errors of the system.
type Backing interface {
	// ReadAt and WriteAt read and write the payload.
	io.ReaderAt
	io.WriterAt
	// Persist is called after the index record of a sample has changed, PersistAll after any may
	// have.
	Persist(s *Segment, sample uint64)
	PersistAll(s *Segment)
	// AllocatedBytes returns the bytes of the pages of payload and index.
	AllocatedBytes() (uint64, error)
	// Close ends the use. The words of the segment are still there.
	Close(s *Segment) error
}

// ReadOnly says whether the segment is attached for reading only. Its words are mapped read-only,
// so the caller MUST NOT store to them. NewLocks and WritePayload return ErrReadOnly.
func (s *Segment) ReadOnly() bool { return s.readOnly }

// Length returns the bytes of a sample whose index record has this meta. In a variable-size cache
// the caller checks the length before use.
func (s *Segment) Length(m Meta) uint64 {
	if s.Variable() {
		return uint64(m.Content())
	}
	return s.Header.SampleBytes
}

// Checksum returns the CRC-32C of a READY sample, whose index record has this meta.
func (s *Segment) Checksum(sample uint64, m Meta) uint32 {
	if s.Variable() {
		return uint32(s.Sum(sample).Load())
	}
	return m.Content()
}

// OnDisk says whether the payload has no memory, so that Bytes must not be called.
func (s *Segment) OnDisk() bool { return s.backing != nil }

// Persist tells the backing that the index record of a sample has changed, PersistAll that any may
// have. Segments in memory need neither.
func (s *Segment) Persist(sample uint64) {
	if s.backing != nil {
		s.backing.Persist(s, sample)
	}
}

// PersistAll: see Persist.
func (s *Segment) PersistAll() {
	if s.backing != nil {
		s.backing.PersistAll(s)
	}
}

// Path returns the path at which the file was created or found; "" for a memfd and on the heap. The
// file may be gone or replaced.
func (s *Segment) Path() string { return s.path }

// Reopen returns a new description of the segment's file that holds no locks. The caller passes it
// to another process, which opens its own lock description from it. It returns errors of the system
// if neither /proc nor the path leads to the file.
func (s *Segment) Reopen() (*os.File, error) {
	defer runtime.KeepAlive(s)
	if s.file == nil {
		return nil, fail(ErrInvalid, "a segment on the heap has no file")
	}
	fd, err := reopen(s.FD(), s.path)
	if err != nil {
		return nil, fail(ErrSystem, "%w", err)
	}
	return os.NewFile(uintptr(fd), s.describe()), nil
}

// HasName says whether the file of a named segment still has a name. It is true for others.
func (s *Segment) HasName() bool {
	defer runtime.KeepAlive(s)
	var st unix.Stat_t
	return s.Header.Flags&FlagNamed == 0 || s.heap != nil || unix.Fstat(s.FD(), &st) != nil || st.Nlink > 0
}

// FD returns the data descriptor. The segment keeps it: callers may map it or pass it on, and MUST
// NOT lock, write or close it. It is -1 on the heap.
func (s *Segment) FD() int {
	if s.file == nil {
		return -1
	}
	return int(s.file.Fd())
}

// KeepWords makes Close keep the addresses of the words for goroutines that are between this call and
// a use of a word, as long as they can reach the segment. Loads after Close return 0. It is for calls
// that do not say when they end: the collector sees it.
func (s *Segment) KeepWords() {
	if !s.keepsWords.Load() { // mostly a load
		s.keepsWords.Store(true)
	}
}

// Close unmaps and closes. It does not wait: the caller MUST have ended all uses of the segment's
// memory, which is invalid afterwards; see KeepWords. A second Close does nothing. Holders of Locks
// close them before.
func (s *Segment) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.first != nil {
		s.first.Close()
		s.first = nil
	}
	var err error
	if s.backing != nil {
		err = s.backing.Close(s)
	}
	if s.file == nil {
		return err
	}
	if s.keepsWords.Load() {
		s.maps.keepWords(s)
	} else {
		s.control, s.payload = nil, nil
	}
	if e := s.maps.unmap(); err == nil {
		err = e
	}
	if e := s.file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fail(ErrSystem, "close %s: %w", s.describe(), err)
	}
	return nil
}

// describe names the segment in messages.
func (s *Segment) describe() string {
	switch {
	case s.path != "":
		return s.path
	case s.file == nil:
		return "the segment on the heap"
	default:
		return "the cache without a name"
	}
}
