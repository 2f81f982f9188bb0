package diskfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm"
)

// File is the file of a segment: an *os.File.
type File interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// Locks on bytes of the file.
const (
	useByte     = 0 // shared by processes that share the file; exclusive by one that has it alone
	openingByte = 1 // by a process that opens or leaves the file
)

// plan returns what the file of these options has to be.
func plan(o shm.Options) (shm.Header, shm.Geometry, error) {
	o.Name, o.Dir, o.Reserve, o.UnlinkLast, o.Lengths = "", "", false, false, false
	o.ClientRecords = 1 // one process has the file; a control part that processes share has its own records
	h, g, err := o.Plan()
	if err == nil && g.Chains() {
		err = fmt.Errorf("%w: policy: on a disk, samples that differ in size need %s", shm.ErrInvalid, shm.PolicyFirstCome)
	}
	return h, g, err
}

// Bytes returns the size of the file that Open would make. Errors: those of Options.SegmentBytes.
func Bytes(o shm.Options) (uint64, error) {
	_, g, err := plan(o)
	return g.SegmentBytes, err
}

// Slots returns how many samples the file that Open would make holds; 0: they differ in size.
// Errors: those of Options.SegmentBytes.
func Slots(o shm.Options) (uint64, error) {
	_, g, err := plan(o)
	if err != nil || o.Variable {
		return 0, err
	}
	return min(g.Slots, g.Samples), nil
}

// asError makes an error ErrSystem if it is none of those that Open returns.
func asError(err error) error {
	for _, known := range []error{shm.ErrInvalid, shm.ErrExists, shm.ErrMemory, shm.ErrSystem} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", shm.ErrSystem, err)
}

// IsFull says whether the file system has no space for a sample.
func IsFull(err error) bool {
	return errors.Is(err, shm.ErrFull) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// makeFile makes the file with its header. It links the name last.
func makeFile(path string, h *shm.Header, g *shm.Geometry) (*os.File, error) {
	dir := filepath.Dir(path)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if free := uint64(fs.Bavail) * uint64(fs.Bsize); free < g.SegmentBytes {
		return nil, fmt.Errorf("%w: %s: the file needs %d bytes, and %s has %d free; make size smaller, or free some",
			shm.ErrMemory, path, g.SegmentBytes, dir, free)
	}
	made, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	temporary := made.Name()
	defer os.Remove(temporary)
	err = made.Truncate(int64(g.SegmentBytes))
	if err == nil { // so that changes of the index do not fail for space; some file systems cannot
		if err = unix.Fallocate(int(made.Fd()), 0, 0, int64(g.PayloadOffset)); errors.Is(err, unix.EOPNOTSUPP) {
			err = nil
		}
	}
	if err == nil {
		_, err = made.WriteAt(h.Encode(g), 0)
	}
	if err == nil {
		err = made.Sync()
	}
	if err == nil {
		err = os.Link(temporary, path)
	}
	if err != nil {
		made.Close()
		return nil, err
	}
	return made, nil
}

func isAt(f *os.File, path string) bool {
	ours, err := f.Stat()
	there, missing := os.Lstat(path)
	return err == nil && missing == nil && os.SameFile(ours, there)
}

// isWhole returns ErrFormat if a file has lost its end.
func isWhole(f *os.File, path string, g *shm.Geometry) error {
	about, err := f.Stat()
	if err == nil && uint64(about.Size()) < g.SegmentBytes {
		return fmt.Errorf("%w: another program has truncated %s: it has %d bytes of %d", shm.ErrFormat, path, about.Size(),
			g.SegmentBytes)
	}
	return err
}

// readAll reads less than all of p only at the end of the file.
func readAll(f File, p []byte, at int64) (int, error) {
	n, err := f.ReadAt(p, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// readHeader returns the header of a file. It must equal the wanted one; number, time and user may
// differ. Errors: ErrSystem; ErrFormat, ErrVersion, ErrFingerprint: it is another segment.
func readHeader(f File, path string, want shm.Header, g *shm.Geometry) (shm.Header, error) {
	page := make([]byte, shm.HeaderBytes)
	if _, err := readAll(f, page, 0); err != nil {
		return want, fmt.Errorf("%w: read the header of %s: %w", shm.ErrSystem, path, err)
	}
	h, _, err := shm.DecodeHeader(page, g.SegmentBytes)
	if err != nil {
		return h, fmt.Errorf("%s: %w", path, err)
	}
	if h.Fingerprint != want.Fingerprint {
		return h, fmt.Errorf("%w: %s has samples of another dataset (%q, not %q)", shm.ErrFingerprint, path, h.Fingerprint,
			want.Fingerprint)
	}
	want.UUID, want.Created, want.UID = h.UUID, h.Created, h.UID
	if !bytes.Equal(want.Encode(g), page) {
		return h, fmt.Errorf("%w: %s was made with other settings, or for other samples", shm.ErrFormat, path)
	}
	return h, nil
}

// isOtherFile says whether an error of readHeader means that the file is not the wanted one.
func isOtherFile(err error) bool {
	return errors.Is(err, shm.ErrFormat) || errors.Is(err, shm.ErrVersion) || errors.Is(err, shm.ErrFingerprint)
}

// writeSession begins a session of the file: control parts of earlier ones are of no use from now
// on.
func writeSession(f File, session [16]byte, kind uint32) error {
	page := make([]byte, shm.DiskSessionBytes)
	copy(page, session[:])
	binary.LittleEndian.PutUint32(page[shm.DiskPID:], uint32(os.Getpid()))
	binary.LittleEndian.PutUint32(page[shm.DiskKind:], kind)
	copy(page[shm.DiskLabel:shm.DiskSessionBytes-1], filepath.Base(os.Args[0]))
	_, err := f.WriteAt(page, shm.DiskSession)
	return err
}

// user says who began the session of a file, for people.
func user(f File) string {
	page := make([]byte, shm.DiskSessionBytes)
	if n, err := readAll(f, page, shm.DiskSession); err != nil || n < len(page) {
		return "a process"
	}
	pid, kind := binary.LittleEndian.Uint32(page[shm.DiskPID:]), binary.LittleEndian.Uint32(page[shm.DiskKind:])
	if pid == 0 {
		return "a process"
	}
	names := map[uint32]string{shm.KindGo: "Go", shm.KindC: "C", shm.KindPython: "Python", shm.KindServer: "a server"}
	label, _, _ := bytes.Cut(page[shm.DiskLabel:], []byte{0})
	return fmt.Sprintf("process %d (%q, %s)", pid, label, names[kind])
}
