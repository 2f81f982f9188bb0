package shm

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm/memory"
)

// A segment with a backing has a control part alone: its first PayloadOffset bytes, in memory.
// Processes that share it map it from a file of its own (docs/spec/segment.md, On a disk).

// NewControl makes a segment with a backing whose control part is in ordinary memory, for one
// process. path is that of the backing, for messages. Locks are simulated, as NewHeap does.
func NewControl(path string, h Header, g Geometry, b Backing) *Segment {
	s := &Segment{Header: h, heap: newHeapLocks(), path: path, backing: b}
	s.Geometry = g
	s.control = make([]byte, g.PayloadOffset) // above 32 KiB, so the runtime aligns it to pages
	copy(s.control, h.Encode(&g))
	return s
}

// controlsName is the folder of control parts, beside caches.
const controlsName = "disk"

// ControlsDir makes the folder of control parts, and returns its path.
func ControlsDir() (string, error) {
	fd, err := openDir(DefaultDir(), true)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	dir := filepath.Join(DefaultDir(), controlsName)
	if err := unix.Mkdirat(fd, controlsName, 0o700); err != nil && err != unix.EEXIST {
		return "", dirError("make", dir, err)
	}
	return dir, nil
}

// OpenControl attaches to the control part of a segment with a backing. path is that of the backing.
// Close does not remove the control part. Errors: ErrNotFound: there is none; ErrFormat: it is not
// that of this header and geometry; others of Open and NewLocks.
func OpenControl(control, path string, h Header, g Geometry, b Backing) (*Segment, error) {
	fd, readOnly, err := openFile(control, false)
	if err != nil {
		return nil, err
	}
	fault.At("control.opened")
	return withControl(fd, control, path, h, g, b, func(s *Segment) (err error) {
		var st unix.Stat_t
		page, err := readHeader(fd)
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		if err == nil && (readOnly || uint64(st.Size) != g.PayloadOffset || !bytes.Equal(page, h.Encode(&g))) {
			err = fail(ErrFormat, "%s is not the control part of %s; remove it", control, path)
		}
		if err == nil {
			err = s.mapControlPart()
		}
		if err == nil {
			s.first, err = lockFile(fd, control, true)
		}
		return err
	})
}

// CreateControl makes the control part of a segment with a backing, in ControlsDir. fill fills its
// words before other processes can find it. Errors: those of Create and of fill.
func CreateControl(control, path string, h Header, g Geometry, b Backing,
	fill func(*Segment) error) (*Segment, error) {
	dir := filepath.Dir(control)
	dirFD, err := openDir(dir, false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dirFD)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dirFD, &fs); err != nil {
		return nil, fail(ErrSystem, "statfs %s: %w", dir, err)
	}
	if err := checkBudget(g.PayloadOffset, &fs, dir, nil); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dirFD, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, createError("make a file in "+dir, &g, err)
	}
	return withControl(fd, control, path, h, g, b, func(s *Segment) error {
		err := unix.Fchmod(fd, 0o600)
		if err == nil {
			err = unix.Ftruncate(fd, int64(g.PayloadOffset))
		}
		if err == nil {
			err = memory.Allocate(fd, 0, g.PayloadOffset, nil)
		}
		if err == nil {
			_, err = unix.Pwrite(fd, h.Encode(&g), 0)
		}
		if err != nil {
			return createError("make the control part "+control, &g, err)
		}
		if err = s.mapControlPart(); err == nil {
			err = fill(s)
		}
		if err == nil { // before others can find it
			s.first, err = lockFile(fd, "", false)
		}
		if err != nil {
			return err
		}
		if err = linkFile(fd, unix.AT_FDCWD, control); err != nil {
			return createError("name "+control, &g, err)
		}
		return nil
	})
}

// withControl makes a segment of the file of a control part. It closes the file if begin fails.
func withControl(fd int, control, path string, h Header, g Geometry, b Backing,
	begin func(*Segment) error) (*Segment, error) {
	s := &Segment{Header: h, path: path, controlPath: control, backing: b}
	s.file = os.NewFile(uintptr(fd), control)
	s.Geometry = g
	s.huge.stop()
	if err := begin(s); err != nil {
		if s.first != nil {
			s.first.Close()
		}
		err = errors.Join(err, s.maps.unmap())
		s.file.Close()
		return nil, err
	}
	return s, nil
}

func (s *Segment) mapControlPart() (err error) {
	if s.maps.control, err = mapControl(s.file, s.PayloadOffset, true); err != nil {
		return mapError("the control part", s.PayloadOffset, err)
	}
	s.control = s.maps.control
	return nil
}

// ListControls finds the control parts that List leaves out, with their paths, Control and the
// header of the segment. dir is that of List.
func ListControls(dir string) ([]Listed, error) {
	return listDir(filepath.Join(cmp.Or(dir, DefaultDir()), controlsName), true)
}
