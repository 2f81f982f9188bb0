package dir

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// tree is the source.
type tree struct {
	root   string // an address, or absolute: changes of the working directory do not matter
	place  *source.Place
	files  files
	schema shm.Schema
	info   source.Info
	kept   *source.OpenFiles[int, descriptor] // by sample; nil: none

	mu     sync.RWMutex // locked for reading by reads: Close waits for them
	closed bool
}

func (t *tree) Info() source.Info { return t.info }

func (t *tree) Size(i int) (int, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f, err := t.file(i)
	if err != nil {
		return 0, err
	}
	return t.size(&f)
}

// size returns the size of a sample of a file.
func (t *tree) size(f *file) (int, error) {
	if !t.files.labelled {
		return int(f.stamp.Bytes), nil
	}
	_, n, err := t.schema.Place(shapes(&t.schema, f.stamp.Bytes))
	return n, err
}

// file is a file of the tree.
type file struct {
	path  string
	stamp source.Stamp
	label int64
}

// file returns the file of sample i. It returns ErrInvalid if there is none, and errors of the list's file. The
// caller holds mu.
func (t *tree) file(i int) (f file, err error) {
	if i < 0 || i >= t.info.Samples {
		return f, source.BadIndex(i, t.info.Samples)
	}
	if err := t.alive(); err != nil {
		return f, err
	}
	name, r, err := t.files.look(i)
	return file{t.place.Join(t.root, name), r.stamp(), r.label}, err
}

// alive returns ErrClosed after Close. The caller holds mu.
func (t *tree) alive() error {
	if t.closed {
		return fmt.Errorf("%w: %s", source.ErrClosed, t.root)
	}
	return nil
}

func (t *tree) Read(ctx context.Context, i int, dst []byte) (int, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f, err := t.file(i)
	n := 0
	if err == nil {
		n, err = t.size(&f)
	}
	if checked := source.CheckRead(ctx, i, t.info.Samples, n, dst); checked != nil {
		return 0, checked
	}
	if err != nil {
		return 0, err
	}
	data := dst[:n]
	if t.files.labelled {
		spans, _, err := t.schema.Begin(dst, shapes(&t.schema, f.stamp.Bytes))
		if err != nil {
			return 0, err
		}
		data = dst[spans[0].Start:spans[0].End]
		binary.LittleEndian.PutUint64(dst[spans[1].Start:spans[1].End], uint64(f.label))
	}
	return n, t.read(ctx, i, &f, data)
}

// read reads the whole file of sample i.
func (t *tree) read(ctx context.Context, i int, f *file, data []byte) error {
	if objects := t.place.Objects(); objects != nil {
		return objects.ReadAt(ctx, f.path, f.stamp, data, 0)
	}
	if t.kept == nil {
		fd, err := t.open(f.path)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return t.readFrom(fd, f.path, f.stamp, data)
	}
	d := t.kept.Get(i)
	if d == nil {
		fd, err := t.open(f.path)
		if err != nil {
			return err
		}
		d = t.kept.Put(i, descriptor(fd))
	}
	defer t.kept.Release(d)
	err := t.readFrom(int(d.File), f.path, f.stamp, data)
	if err != nil {
		t.kept.Drop(i, d) // the next reader opens the file again by its name
	}
	return err
}

// descriptor is an open file.
type descriptor int

func (d descriptor) Close() error { return unix.Close(int(d)) }

// open opens a file.
func (t *tree) open(path string) (int, error) {
	for {
		// O_NONBLOCK: a FIFO that has replaced the file must not block.
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		full := err == unix.EMFILE || err == unix.ENFILE
		switch {
		case err == nil:
			return fd, nil
		case err == unix.EINTR, full && t.kept != nil && t.kept.Clear() > 0:
			continue
		case full:
			return 0, fmt.Errorf("%w: this process may have %d files open; raise the limit (ulimit -n, "+
				"LimitNOFILE= in a unit file), or lower descriptors",
				&os.PathError{Op: "open", Path: path, Err: err}, mayOpen())
		}
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
}

// mayOpen returns how many files this process may have open at the same time.
func mayOpen() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64 // if it ever fails, nothing is refused
	}
	return limit.Cur
}

// readFrom reads a whole open file with a known stamp. It checks the stamp once, after the read. A
// write changes a file's time before its bytes, so a file with the same stamp has not changed
// during the read. (A check before the read would add a tenth to the time of small files and find nothing
// more.)
func (t *tree) readFrom(fd int, path string, listed source.Stamp, data []byte) error {
	failed := source.ReadFull(fd, path, data, 0)
	if err := isStill(fd, path, listed); err != nil {
		return err
	}
	return failed
}

// isStill returns ErrChanged unless an open file has the given stamp.
func isStill(fd int, path string, listed source.Stamp) error {
	stamp, err := source.StampOfDescriptor(fd, path)
	switch {
	case errors.Is(err, source.ErrInvalid):
		return fmt.Errorf("%w: %w", source.ErrChanged, err) // a FIFO or a folder has the name now
	case err != nil:
		return err
	}
	return listed.Check(path, stamp)
}

func (t *tree) Where(i int) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f, err := t.file(i)
	if err != nil {
		return ""
	}
	return f.path
}

func (t *tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	if t.kept != nil {
		t.kept.Clear()
	}
	t.files.close()
	t.place.Close()
	return nil
}
