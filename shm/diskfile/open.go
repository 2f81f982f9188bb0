package diskfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm"
)

// Open opens the segment in a file, or makes it. One process uses the file at a time. The segment
// serves Cache.Get and Set of one process, and no views. Samples in the file are not checked here.
//
// Options are those of shm.Create; Name, Dir, Reserve, UnlinkLast and ClientRecords are ignored. A
// file with other options, another Fingerprint among them, is replaced. replaced says why; "": the
// file was kept, or there was none.
//
// Errors: ErrInvalid; ErrExists: another process uses the file; ErrMemory: the file system has less
// space than the segment needs, with the numbers; ErrSystem.
func Open(path string, o shm.Options) (s *Segment, replaced string, err error) {
	h, g, err := plan(o)
	if err != nil {
		return nil, "", err
	}
	if err := CheckLocal(filepath.Dir(path)); err != nil {
		return nil, "", err
	}
	h.Stamp()
	for range 100 {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			f, err = makeFile(path, &h, &g)
			if errors.Is(err, unix.EEXIST) {
				continue // another process has just made it
			}
		}
		if err != nil {
			return nil, "", asError(err)
		}
		if err = lockAlone(f); err == nil && !isAt(f, path) {
			f.Close() // another process has replaced it before we had the lock
			continue
		}
		if err == nil {
			s, err = load(f, path, h, g)
		}
		if err == nil {
			err = isWhole(f, path, &g)
		}
		if err == nil {
			var session [16]byte
			rand.Read(session[:]) // never fails
			err = writeSession(f, session, shm.KindServer)
		}
		if err == nil {
			return s, replaced, nil
		}
		f.Close()
		if !isOtherFile(err) {
			return nil, "", asError(err)
		}
		replaced = err.Error()
		if err := os.Remove(path); err != nil {
			return nil, "", asError(err)
		}
	}
	return nil, "", fmt.Errorf("%w: %s: other processes make and replace it all the time", shm.ErrExists, path)
}

func lockAlone(f *os.File) error {
	ok, err := shm.LockByte(int(f.Fd()), unix.F_WRLCK, useByte)
	if err == nil && !ok {
		return fmt.Errorf("%w: %s: %s and perhaps others use it; end them, or give this one another folder", shm.ErrExists,
			f.Name(), user(f))
	}
	return err
}

// Load is Open of a file that Open has made with the same options. It does not lock it: tests give
// it a file that fails. ErrFormat, ErrVersion, ErrFingerprint: it is another segment.
func Load(f File, path string, o shm.Options) (*Segment, error) {
	h, g, err := plan(o)
	if err != nil {
		return nil, err
	}
	return load(f, path, h, g)
}

func load(f File, path string, want shm.Header, g shm.Geometry) (*Segment, error) {
	h, err := readHeader(f, path, want, &g)
	if err != nil {
		return nil, err
	}
	st := &store{file: f, path: path, header: h, geometry: g}
	seg := shm.NewControl(path, h, g, &alone{st})
	if err := st.readIndex(seg); err != nil {
		return nil, err
	}
	return &Segment{seg, st}, nil
}
