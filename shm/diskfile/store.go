package diskfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/stocached/stocached/shm"
)

// Segment is a segment in a file.
type Segment struct {
	*shm.Segment
	store *store
}

// Failure returns the first error of a write of the index since the last call, or nil. Such an
// error costs hits after the next start: the checksum of a sample decides, not its index record.
func (s *Segment) Failure() error {
	if err := s.store.failure.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// NoSpace returns the last error of a write of a sample that found no space on the disk since the last call, or nil. The
// cache says only that it is full, as if its own slots were.
func (s *Segment) NoSpace() error {
	if err := s.store.noSpace.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// Probe writes the header to the file again and reads it back: whether the disk works.
func (s *Segment) Probe() error {
	st := s.store
	page, back := st.header.Encode(&st.geometry), make([]byte, shm.HeaderBytes)
	if _, err := st.file.WriteAt(page, 0); err != nil {
		return fmt.Errorf("%w: write the header of %s: %w", shm.ErrSystem, st.path, err)
	}
	if _, err := st.file.ReadAt(back, 0); err != nil {
		return fmt.Errorf("%w: read the header of %s: %w", shm.ErrSystem, st.path, err)
	}
	if !slices.Equal(page, back) {
		return fmt.Errorf("%w: the header of %s comes back changed", shm.ErrSystem, st.path)
	}
	return nil
}

// Look says whether the path still names the file, whole and with its header. Errors: ErrFormat: another program has removed,
// replaced, truncated or overwritten it; ErrSystem.
func (s *Segment) Look() error {
	st := s.store
	f, ok := st.file.(*os.File)
	if !ok {
		return nil // a test has given another file
	}
	_, err := os.Lstat(st.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: another program has removed %s", shm.ErrFormat, st.path)
	case err != nil:
		return fmt.Errorf("%w: %w", shm.ErrSystem, err)
	case !isAt(f, st.path):
		return fmt.Errorf("%w: another program has replaced %s", shm.ErrFormat, st.path)
	}
	if err := isWhole(f, st.path, &st.geometry); err != nil {
		return err
	}
	page := make([]byte, shm.HeaderBytes)
	if _, err := readAll(f, page, 0); err != nil {
		return fmt.Errorf("%w: read the header of %s: %w", shm.ErrSystem, st.path, err)
	}
	if !slices.Equal(page, st.header.Encode(&st.geometry)) {
		return fmt.Errorf("%w: another program has overwritten %s", shm.ErrFormat, st.path)
	}
	return nil
}

// store is what a segment has in its file. Its header and geometry are those of the file; a control
// part that processes share has others.
type store struct {
	file     File
	path     string
	header   shm.Header
	geometry shm.Geometry
	failure  atomic.Pointer[error]
	noSpace  atomic.Pointer[error]
}

// ReadAt is part of shm.Backing. It reads zeros where a file that was truncated has nothing more.
func (st *store) ReadAt(p []byte, offset int64) (int, error) {
	n, err := st.file.ReadAt(p, int64(st.geometry.PayloadOffset)+offset)
	if errors.Is(err, io.EOF) {
		clear(p[n:])
		return len(p), nil
	}
	return n, err
}

// WriteAt is part of shm.Backing.
func (st *store) WriteAt(p []byte, offset int64) (int, error) {
	n, err := st.file.WriteAt(p, int64(st.geometry.PayloadOffset)+offset)
	if IsFull(err) {
		st.noSpace.Store(&err)
	}
	return n, err
}

// Persist is part of shm.Backing.
func (st *store) Persist(s *shm.Segment, sample uint64) {
	if s.Variable() {
		st.write(st.geometry.SumsOffset+sample*shm.SumRecordBytes, s.Sum(sample).Load())
	}
	st.write(st.geometry.IndexOffset+sample*shm.IndexRecordBytes, s.Word(sample).Load(), s.Meta(sample).Load())
}

// PersistAll is part of shm.Backing.
func (st *store) PersistAll(s *shm.Segment) {
	const step = 4096 // samples
	for first := uint64(0); first < s.Samples; first += step {
		var sums, records []uint64
		for i := first; i < min(first+step, s.Samples); i++ {
			records = append(records, s.Word(i).Load(), s.Meta(i).Load())
			if s.Variable() {
				sums = append(sums, s.Sum(i).Load())
			}
		}
		if s.Variable() {
			st.write(st.geometry.SumsOffset+first*shm.SumRecordBytes, sums...)
		}
		st.write(st.geometry.IndexOffset+first*shm.IndexRecordBytes, records...)
	}
}

func (st *store) write(at uint64, words ...uint64) {
	b := make([]byte, 0, 16)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	if _, err := st.file.WriteAt(b, int64(at)); err != nil {
		st.failure.CompareAndSwap(nil, &err)
	}
}

// AllocatedBytes is part of shm.Backing.
func (st *store) AllocatedBytes() (uint64, error) {
	f, ok := st.file.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return st.geometry.SegmentBytes, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return uint64(info.Sys().(*syscall.Stat_t).Blocks) * 512, nil
}

// alone is a store that one process has for itself.
type alone struct{ *store }

// Close is part of shm.Backing.
func (a *alone) Close(*shm.Segment) error { return closed(a.path, a.file.Sync(), a.file.Close()) }

// closed joins the errors of a Close.
func closed(path string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: close %s: %w", shm.ErrSystem, path, err)
	}
	return nil
}
