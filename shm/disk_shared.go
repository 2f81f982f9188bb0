package shm

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// Locks on bytes of the file of a segment on a disk.
const (
	diskFileByte    = 0 // shared by processes that share the file; exclusive by one that has it alone
	diskOpeningByte = 1 // by a process that opens or leaves the file
)

const (
	diskOpening = time.Minute // bounds the wait for others that open the file, and read its index
	diskEnding  = time.Second // bounds the wait for the end of others whose control part is gone
	diskLeaving = 5 * time.Second
)

// controlsName is the folder of control parts, beside caches.
const controlsName = "disk"

// errAgain says that the file, or its control part, is another one by now.
var errAgain = errors.New("another process has replaced the file")

// unseenError says that others use the file, and that their control part is not there. The kernel may have closed
// the control part of a process that ends, and not its file yet. A tool may remove the control part then.
type unseenError struct{ error }

func (e *unseenError) Unwrap() error { return e.error }

// OpenSharedDisk is OpenDisk for processes that share the file: docs/spec/segment.md, A control part that
// processes share. The control part is mapped, and the segment serves Cache.Get and Set of any number of
// processes. Close removes the control part if no other process uses the file.
//
// A file with other options is replaced only if no other process uses it. It waits for at most a minute while
// others open the file. Errors are those of OpenDisk; ErrExists: a process has the file for itself, or others
// have another /dev/shm; ErrFingerprint, ErrFormat: others use the file with other options; ErrTimeout.
func OpenSharedDisk(path string, o Options) (s *Segment, replaced string, err error) {
	want, file, err := o.planDisk()
	if err != nil {
		return nil, "", err
	}
	if err := cmp.Or(checkFileSize(file.SegmentBytes), CheckLocal(filepath.Dir(path))); err != nil {
		return nil, "", err
	}
	for began := time.Now(); ; {
		var why string
		s, why, err = openSharedDisk(path, want, file)
		if why != "" {
			replaced = why
		}
		passed, unseen := time.Since(began), (*unseenError)(nil)
		switch {
		case errors.As(err, &unseen) && passed < diskEnding:
			time.Sleep(2 * time.Millisecond)
		case !errors.Is(err, errAgain):
			return s, replaced, err
		case passed > diskOpening:
			return nil, "", fail(ErrExists, "%s: other processes make and replace it all the time", path)
		}
	}
}

func openSharedDisk(path string, want Header, file Geometry) (s *Segment, replaced string, err error) {
	f, err := openDiskFile(path, &want, &file)
	if errors.Is(err, unix.EEXIST) {
		err = errAgain
	}
	if err != nil {
		return nil, "", err
	}
	s = &Segment{disk: f, diskLocks: &fileLocks{fd: int(f.Fd())}, path: path, fileGeometry: file}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.maps.unmap())
			if s.present != nil {
				s.present.Close()
			}
			if s.file != nil {
				s.file.Close()
			}
			f.Close()
		}
	}()
	if err = s.lockOpening(diskOpening); err != nil {
		return nil, "", err
	}
	defer func() { _, _ = s.diskLocks.set(unix.F_UNLCK, diskOpeningByte) }()
	if !isAt(f, path) {
		return nil, "", errAgain
	}
	dir, err := diskControls()
	if err != nil {
		return nil, "", err
	}
	alone, err := s.diskLocks.set(unix.F_WRLCK, diskFileByte)
	if err != nil {
		return nil, "", err
	}
	if alone {
		replaced, err = s.beginAlone(dir, want)
	} else {
		var shared bool
		shared, err = s.diskLocks.set(unix.F_RDLCK, diskFileByte)
		if err == nil && !shared {
			err = fail(ErrExists, "%s: %s has it for itself; end it, or give this one another folder", path, diskMaker(f))
		}
		if err == nil {
			err = s.joinOthers(dir, want)
		}
	}
	if err == nil && s.present == nil {
		s.present, err = lockFile(s.FD(), s.controlPath, true)
		if errors.Is(err, ErrNotFound) {
			err = errAgain // RemoveUnused was faster
		}
	}
	return s, replaced, err
}

// openDiskFile opens the file, or makes it.
func openDiskFile(path string, h *Header, g *Geometry) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		h.stamp()
		f, err = makeDisk(path, h, g)
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil, err
	case errors.Is(err, os.ErrNotExist):
		return nil, fail(ErrNotFound, "the folder %s does not exist; make it, on a local disk", filepath.Dir(path))
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR):
		return nil, fail(ErrPermission, "%w; give another folder", err)
	case err != nil:
		return nil, asError(err)
	}
	if err := checkFile(path, func(st *unix.Stat_t) error { return unix.Fstat(int(f.Fd()), st) }); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// isOtherFile says whether an error of diskHeader means that the file is not the wanted one.
func isOtherFile(err error) bool {
	return errors.Is(err, ErrFormat) || errors.Is(err, ErrVersion) || errors.Is(err, ErrFingerprint)
}

// beginAlone uses the file, or replaces it, while no other process does. It returns why it was replaced.
func (s *Segment) beginAlone(dir string, want Header) (replaced string, err error) {
	file, err := s.diskHeader(want)
	s.fileHeader = file
	if isOtherFile(err) {
		if !s.beginsLikeOurs() {
			return "", fail(ErrFormat, "%s is no disk cache, and stays as it is; give another path", s.path)
		}
		if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", asError(err)
		}
		return err.Error(), errAgain
	}
	if err != nil {
		return "", err
	}
	err = s.attachControl(dir, file)
	if errors.Is(err, ErrFormat) {
		err = os.Remove(s.controlPath)
		if err == nil {
			err = ErrNotFound
		}
	}
	if errors.Is(err, ErrNotFound) {
		err = s.makeControl(dir, file)
	}
	if err != nil {
		return "", err
	}
	_, err = s.diskLocks.set(unix.F_RDLCK, diskFileByte) // ours is exclusive, so that cannot fail
	return "", err
}

// joinOthers uses the file together with other processes.
func (s *Segment) joinOthers(dir string, want Header) error {
	file, err := s.diskHeader(want)
	s.fileHeader = file
	if isOtherFile(err) {
		return fmt.Errorf("%w, and %s and perhaps others use it; end them, or give another folder", err, diskMaker(s.disk))
	}
	if err == nil {
		err = s.attachControl(dir, file)
	}
	if errors.Is(err, ErrNotFound) {
		return &unseenError{fail(ErrExists, "%s: %s and perhaps others use it, and this process does not see their control part %s; "+
			"share /dev/shm with them, or give another folder", s.path, diskMaker(s.disk), s.controlPath)}
	}
	return err
}

// diskHeader returns the header of the file. It must equal the wanted one; number, time and user may differ.
func (s *Segment) diskHeader(want Header) (Header, error) {
	page := make([]byte, HeaderBytes)
	if _, err := readAll(s.disk, page, 0); err != nil {
		return want, fail(ErrSystem, "read the header of %s: %w", s.path, err)
	}
	h, _, err := decodeHeader(page, s.fileGeometry.SegmentBytes)
	if err != nil {
		return h, fmt.Errorf("%s: %w", s.path, err)
	}
	if h.Fingerprint != want.Fingerprint {
		return h, fail(ErrFingerprint, "%s has samples of another dataset (%q, not %q)", s.path, h.Fingerprint, want.Fingerprint)
	}
	want.UUID, want.Created, want.UID = h.UUID, h.Created, h.UID
	if !bytes.Equal(want.encode(&s.fileGeometry), page) {
		return h, fail(ErrFormat, "%s was made with other settings, or for other samples", s.path)
	}
	return h, nil
}

// beginsLikeOurs says whether the file may be removed: it is a segment, or its header was lost.
func (s *Segment) beginsLikeOurs() bool {
	begin := make([]byte, len(Magic))
	_, err := readAll(s.disk, begin, 0)
	return err == nil && (string(begin) == Magic || bytes.Equal(begin, make([]byte, len(Magic))))
}

// diskControls makes the folder of control parts, and returns its path.
func diskControls() (string, error) {
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

// controlOf sets the path of the control part of a session, and returns its header and geometry.
func (s *Segment) controlOf(dir string, file Header, session [16]byte) (Header, Geometry, error) {
	f := s.disk.(*os.File)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return file, Geometry{}, fail(ErrSystem, "stat %s: %w", s.path, err)
	}
	s.controlPath = filepath.Join(dir, fmt.Sprintf("%d-%d-%x", st.Dev, st.Ino, session))
	g := s.fileGeometry
	g, err := NewGeometry(file.Flags, g.Policy, g.Samples, g.Slots, g.SlotStride, DefaultClientRecords, g.PayloadBytes)
	file.UUID = session
	return file, g, err
}

// attachControl attaches to the control part of the file's session. ErrNotFound: there is none; ErrFormat: it
// is damaged.
func (s *Segment) attachControl(dir string, file Header) error {
	var session [16]byte
	if n, err := readAll(s.disk, session[:], DiskSession); err != nil {
		return fail(ErrSystem, "read the session of %s: %w", s.path, err)
	} else if n < len(session) {
		return fail(ErrNotFound, "%s has no session", s.path)
	}
	h, g, err := s.controlOf(dir, file, session)
	if err != nil {
		return err
	}
	fd, readOnly, err := openFile(s.controlPath, false)
	if err != nil {
		return err
	}
	s.file = os.NewFile(uintptr(fd), s.controlPath)
	var st unix.Stat_t
	page, err := readHeader(fd)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && (readOnly || uint64(st.Size) != g.PayloadOffset || !bytes.Equal(page, h.encode(&g))) {
		err = fail(ErrFormat, "%s is not the control part of %s; remove it", s.controlPath, s.path)
	}
	if err == nil {
		err = s.mapControlPart(h, g)
	}
	if err != nil {
		s.file.Close()
		s.file = nil
	}
	return err
}

func (s *Segment) mapControlPart(h Header, g Geometry) (err error) {
	s.Header, s.Geometry = h, g
	s.huge.stop()
	if s.maps.control, err = mapControl(s.file, g.PayloadOffset, true); err != nil {
		return mapError("the control part", g.PayloadOffset, err)
	}
	s.control = s.maps.control
	return nil
}

// makeControl makes the control part of a new session from the index in the file, while no other process uses
// the file.
func (s *Segment) makeControl(dir string, file Header) error {
	var session [16]byte
	rand.Read(session[:]) // never fails
	h, g, err := s.controlOf(dir, file, session)
	if err != nil {
		return err
	}
	dirFD, err := openDir(dir, false)
	if err != nil {
		return err
	}
	defer unix.Close(dirFD)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dirFD, &fs); err != nil {
		return fail(ErrSystem, "statfs %s: %w", dir, err)
	}
	if err := checkBudget(g.PayloadOffset, &fs, dir, nil); err != nil {
		return err
	}
	fd, err := unix.Openat(dirFD, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return createError("make a file in "+dir, &g, err)
	}
	s.file = os.NewFile(uintptr(fd), s.controlPath)
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = unix.Ftruncate(fd, int64(g.PayloadOffset))
	}
	if err == nil {
		err = memory.Allocate(fd, 0, g.PayloadOffset, nil)
	}
	if err == nil {
		_, err = unix.Pwrite(fd, h.encode(&g), 0)
	}
	if err != nil {
		return createError("make the control part "+s.controlPath, &g, err)
	}
	if err := s.mapControlPart(h, g); err != nil {
		return err
	}
	if err := s.readIndex(); err != nil {
		return err
	}
	if err := writeSession(s.disk, session, KindGo); err != nil {
		return fail(ErrSystem, "write the session of %s: %w", s.path, err)
	}
	if s.present, err = lockFile(fd, "", false); err != nil { // before others can find it
		return err
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, s.controlPath, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return createError("name "+s.controlPath, &g, err)
	}
	return nil
}

// writeSession begins a session of the file: control parts of earlier ones are of no use from now on.
func writeSession(f DiskFile, session [16]byte, kind uint32) error {
	page := make([]byte, DiskSessionBytes)
	copy(page, session[:])
	binary.LittleEndian.PutUint32(page[DiskPID:], uint32(os.Getpid()))
	binary.LittleEndian.PutUint32(page[DiskKind:], kind)
	copy(page[DiskLabel:DiskSessionBytes-1], filepath.Base(os.Args[0]))
	_, err := f.WriteAt(page, DiskSession)
	return err
}

// diskMaker says who made the control part of a file, for people.
func diskMaker(f DiskFile) string {
	page := make([]byte, DiskSessionBytes)
	if n, err := readAll(f, page, DiskSession); err != nil || n < len(page) {
		return "a process"
	}
	pid, kind := binary.LittleEndian.Uint32(page[DiskPID:]), binary.LittleEndian.Uint32(page[DiskKind:])
	if pid == 0 {
		return "a process"
	}
	names := map[uint32]string{KindGo: "Go", KindC: "C", KindPython: "Python", KindServer: "a server"}
	label, _, _ := bytes.Cut(page[DiskLabel:], []byte{0})
	return fmt.Sprintf("process %d (%q, %s)", pid, label, names[kind])
}

// lockOpening locks the byte that a process holds while it opens or leaves the file.
func (s *Segment) lockOpening(patience time.Duration) error {
	pause := 100 * time.Microsecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		ok, err := s.diskLocks.set(unix.F_WRLCK, diskOpeningByte)
		if err != nil || ok {
			return err
		}
		if time.Now().After(end) {
			return fail(ErrTimeout, "%s: another process has been opening it for %v", s.path, patience)
		}
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// leaveDisk writes the index to the file and removes the control part, if no other process uses the file.
func (s *Segment) leaveDisk() error {
	if err := s.lockOpening(diskLeaving); err != nil {
		return nil // the control part stays for the next user
	}
	last, err := s.diskLocks.set(unix.F_WRLCK, diskFileByte)
	if err != nil || !last {
		return err
	}
	s.PersistAll()
	if err := os.Remove(s.controlPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(ErrSystem, "%w", err)
	}
	return nil
}

// ListControls finds the control parts that List leaves out: those of disk caches that processes share, with their
// paths, Control and the header of the disk cache. dir is that of List.
func ListControls(dir string) ([]Listed, error) {
	return listDir(filepath.Join(cmp.Or(dir, DefaultDir()), controlsName), true)
}
