package shm

import (
	"os"
	"runtime"
	"sync"
)

// Segment is an attached segment: its words (Region), its header, and the file behind them.
//
// Memory of the segment (words, Bytes) is valid until Close. All methods but Close may be called by any number of goroutines; Close MUST come
// after every other call and every use of that memory has ended.
type Segment struct {
	Region
	Header Header

	file     *os.File // the data description: mapped, so never locked. nil on the heap
	maps     mapping
	huge     hugePace
	path     string // "" without one
	readOnly bool
	byName   bool // opened by name or path: see lockFile
	heap     *heapLocks

	mu     sync.Mutex // protects what follows
	first  *fileLocks // the creator's lock description, locked before the file got its name; the first NewLocks returns it
	locked bool       // NewLocks has succeeded once
	closed bool
}

// ReadOnly says whether the segment is attached for reading only: its words MUST NOT be stored to (they are mapped read-only), and NewLocks and
// WritePayload refuse.
func (s *Segment) ReadOnly() bool { return s.readOnly }

// Length returns the bytes of a sample whose index record has this meta. Of a variable-size cache: bound it before use.
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

// Path returns where the file was created or found; "" for a memfd and on the heap. It may have been removed or replaced since.
func (s *Segment) Path() string { return s.path }

// Reopen returns a description of the segment's file that is new and holds no locks, for another process to get it: it opens one of its own from it for its locks.
// Errors of the system, where neither /proc nor the path leads to the file.
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

// FD returns the data descriptor, which stays the segment's: callers may map it or pass it on, and MUST NOT lock, write or close it. -1 on the heap.
func (s *Segment) FD() int {
	if s.file == nil {
		return -1
	}
	return int(s.file.Fd())
}

// Close unmaps and closes. It waits for nobody: the caller MUST have ended every use of the segment's memory, which is gone afterwards. A second Close
// does nothing. Locks from NewLocks are closed by their holder, before.
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
	s.control, s.payload = nil, nil
	if s.file == nil {
		return nil
	}
	err := s.maps.unmap()
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
