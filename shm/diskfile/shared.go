package diskfile

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm"
)

const (
	opening = time.Minute // bounds the wait for others that open the file, and read its index
	ending  = time.Second // bounds the wait for the end of others whose control part is gone
	leaving = 5 * time.Second
)

// errAgain says that the file is another one by now.
var errAgain = errors.New("another process has replaced the file")

// unseenError says that others use the file, and that their control part is not there. The kernel
// may have closed the control part of a process that ends, and not its file yet. A tool may remove
// the control part then.
type unseenError struct{ error }

func (e *unseenError) Unwrap() error { return e.error }

// shared is a store that processes share. They map its control part.
type shared struct {
	*store
	file    *os.File // file of the store, for locks
	control string   // path of the control part
	// present has the shared users lock of the control part until this process has left the file.
	present shm.Locks
}

// OpenShared is Open for processes that share the file: docs/spec/segment.md, A control part that
// processes share. The control part is mapped, and the segment serves Cache.Get and Set of any
// number of processes. Close removes the control part if no other process uses the file.
//
// A file with other options is replaced only if no other process uses it. It waits for at most a
// minute while others open the file. Errors are those of Open; ErrExists: a process has the file
// for itself, or others have another /dev/shm; ErrFingerprint, ErrFormat: others use the file with
// other options; ErrTimeout.
func OpenShared(path string, o shm.Options) (s *Segment, replaced string, err error) {
	want, g, err := plan(o)
	if err != nil {
		return nil, "", err
	}
	if err := cmp.Or(shm.CheckFileSize(g.SegmentBytes), CheckLocal(filepath.Dir(path))); err != nil {
		return nil, "", err
	}
	for began := time.Now(); ; {
		var why string
		s, why, err = openShared(path, want, g)
		if why != "" {
			replaced = why
		}
		passed, unseen := time.Since(began), (*unseenError)(nil)
		switch {
		case errors.As(err, &unseen) && passed < ending:
			time.Sleep(2 * time.Millisecond)
		case !errors.Is(err, errAgain):
			return s, replaced, err
		case passed > opening:
			return nil, "", fmt.Errorf("%w: %s: other processes make and replace it all the time", shm.ErrExists, path)
		}
	}
}

func openShared(path string, want shm.Header, g shm.Geometry) (s *Segment, replaced string, err error) {
	f, err := openFile(path, &want, &g)
	if errors.Is(err, unix.EEXIST) {
		err = errAgain
	}
	if err != nil {
		return nil, "", err
	}
	sh := &shared{store: &store{file: f, path: path, geometry: g}, file: f}
	seg, replaced, err := sh.open(want)
	if err != nil {
		f.Close()
		return nil, replaced, err
	}
	return &Segment{seg, sh.store}, replaced, nil
}

// open opens the control part of the file, with the users lock. It has the opening lock meanwhile.
func (sh *shared) open(want shm.Header) (seg *shm.Segment, replaced string, err error) {
	if err := sh.lockOpening(opening); err != nil {
		return nil, "", err
	}
	defer func() { _, _ = sh.lock(unix.F_UNLCK, openingByte) }()
	if !isAt(sh.file, sh.path) {
		return nil, "", errAgain
	}
	dir, err := shm.ControlsDir()
	if err != nil {
		return nil, "", err
	}
	isAlone, err := sh.lock(unix.F_WRLCK, useByte)
	if err != nil {
		return nil, "", err
	}
	if isAlone {
		seg, replaced, err = sh.beginAlone(dir, want)
	} else {
		seg, err = sh.joinOthers(dir, want)
	}
	if err != nil {
		return nil, replaced, err
	}
	sh.present, _ = seg.NewLocks() // the lock that it was opened with, so that cannot fail
	return seg, replaced, nil
}

// lock changes the lock of one byte of the file.
func (sh *shared) lock(kind int16, at int64) (bool, error) {
	return shm.LockByte(int(sh.file.Fd()), kind, at)
}

// lockOpening locks the byte that a process holds while it opens or leaves the file.
func (sh *shared) lockOpening(patience time.Duration) error {
	pause := 100 * time.Microsecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		ok, err := sh.lock(unix.F_WRLCK, openingByte)
		if err != nil || ok {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %s: another process has been opening it for %v", shm.ErrTimeout, sh.path, patience)
		}
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// openFile opens the file, or makes it.
func openFile(path string, h *shm.Header, g *shm.Geometry) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		h.Stamp()
		f, err = makeFile(path, h, g)
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil, err
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: the folder %s does not exist; make it, on a local disk", shm.ErrNotFound,
			filepath.Dir(path))
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR):
		return nil, fmt.Errorf("%w: %w; give another folder", shm.ErrPermission, err)
	case err != nil:
		return nil, asError(err)
	}
	if err := shm.CheckFile(int(f.Fd()), path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// beginAlone uses the file, or replaces it, while no other process does. It returns why it was
// replaced.
func (sh *shared) beginAlone(dir string, want shm.Header) (seg *shm.Segment, replaced string, err error) {
	sh.header, err = readHeader(sh.file, sh.path, want, &sh.geometry)
	if isOtherFile(err) {
		if !sh.beginsLikeOurs() {
			return nil, "", fmt.Errorf("%w: %s is no disk cache, and stays as it is; give another path", shm.ErrFormat, sh.path)
		}
		if err := os.Remove(sh.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, "", asError(err)
		}
		return nil, err.Error(), errAgain
	}
	if err != nil {
		return nil, "", err
	}
	seg, err = sh.openControl(dir)
	if errors.Is(err, shm.ErrFormat) {
		err = os.Remove(sh.control)
		if err == nil {
			err = shm.ErrNotFound
		}
	}
	if errors.Is(err, shm.ErrNotFound) {
		seg, err = sh.makeControl(dir)
	}
	if err != nil {
		return nil, "", err
	}
	_, _ = sh.lock(unix.F_RDLCK, useByte) // ours is exclusive, so that cannot fail
	return seg, "", nil
}

// joinOthers uses the file together with other processes.
func (sh *shared) joinOthers(dir string, want shm.Header) (seg *shm.Segment, err error) {
	switch ok, err := sh.lock(unix.F_RDLCK, useByte); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("%w: %s: %s has it for itself; end it, or give this one another folder", shm.ErrExists, sh.path,
			user(sh.file))
	}
	sh.header, err = readHeader(sh.file, sh.path, want, &sh.geometry)
	if isOtherFile(err) {
		return nil, fmt.Errorf("%w, and %s and perhaps others use it; end them, or give another folder", err, user(sh.file))
	}
	if err == nil {
		seg, err = sh.openControl(dir)
	}
	if errors.Is(err, shm.ErrNotFound) {
		return nil, &unseenError{fmt.Errorf("%w: %s: %s and perhaps others use it, and this process does not see their control "+
			"part %s; share /dev/shm with them, or give another folder", shm.ErrExists, sh.path, user(sh.file), sh.control)}
	}
	return seg, err
}

// beginsLikeOurs says whether the file may be removed: it is a segment, or its header was lost.
func (sh *shared) beginsLikeOurs() bool {
	begin := make([]byte, len(shm.Magic))
	_, err := readAll(sh.file, begin, 0)
	return err == nil && (string(begin) == shm.Magic || bytes.Equal(begin, make([]byte, len(shm.Magic))))
}

// planControl sets the path of the control part of a session, and returns its header and geometry.
func (sh *shared) planControl(dir string, session [16]byte) (shm.Header, shm.Geometry, error) {
	h := sh.header
	h.UUID = session
	var st unix.Stat_t
	if err := unix.Fstat(int(sh.file.Fd()), &st); err != nil {
		return h, shm.Geometry{}, fmt.Errorf("%w: stat %s: %w", shm.ErrSystem, sh.path, err)
	}
	sh.control = filepath.Join(dir, fmt.Sprintf("%d-%d-%x", st.Dev, st.Ino, session))
	g := sh.geometry
	g, err := shm.NewGeometry(h.Flags, g.Policy, g.Samples, g.Slots, g.SlotStride, shm.DefaultClientRecords, g.PayloadBytes)
	return h, g, err
}

// openControl attaches to the control part of the file's session. ErrNotFound: there is none, or it
// has just been removed; ErrFormat: it is damaged.
func (sh *shared) openControl(dir string) (*shm.Segment, error) {
	var session [16]byte
	if n, err := readAll(sh.file, session[:], shm.DiskSession); err != nil {
		return nil, fmt.Errorf("%w: read the session of %s: %w", shm.ErrSystem, sh.path, err)
	} else if n < len(session) {
		return nil, fmt.Errorf("%w: %s has no session", shm.ErrNotFound, sh.path)
	}
	h, g, err := sh.planControl(dir, session)
	if err != nil {
		return nil, err
	}
	return shm.OpenControl(sh.control, sh.path, h, g, sh)
}

// makeControl makes the control part of a new session from the index in the file, while no other
// process uses the file.
func (sh *shared) makeControl(dir string) (*shm.Segment, error) {
	var session [16]byte
	rand.Read(session[:]) // never fails
	h, g, err := sh.planControl(dir, session)
	if err != nil {
		return nil, err
	}
	return shm.CreateControl(sh.control, sh.path, h, g, sh, func(s *shm.Segment) error {
		if err := sh.readIndex(s); err != nil {
			return err
		}
		if err := writeSession(sh.file, session, shm.KindGo); err != nil {
			return fmt.Errorf("%w: write the session of %s: %w", shm.ErrSystem, sh.path, err)
		}
		return nil
	})
}

// Close is part of shm.Backing. It writes no samples to the disk (sync): others still write to the
// file, and no sample needs it.
func (sh *shared) Close(s *shm.Segment) error {
	return closed(sh.path, sh.leave(s), sh.present.Close(), sh.file.Close())
}

// leave writes the index to the file and removes the control part, if no other process uses the
// file.
func (sh *shared) leave(s *shm.Segment) error {
	if err := sh.lockOpening(leaving); err != nil {
		return nil // the control part stays for the next user
	}
	last, err := sh.lock(unix.F_WRLCK, useByte)
	if err != nil || !last {
		return err
	}
	sh.PersistAll(s)
	if err := os.Remove(sh.control); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
