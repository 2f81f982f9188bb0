package block

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// folder is where a Writer writes. The files of an incomplete dataset lie in a folder with ".part" after
// its name, which is renamed at the end.
type folder struct {
	path  string // path of the complete dataset
	part  string // path of the incomplete dataset
	lock  *os.File
	check func(ctx context.Context, folder string) error // Writer.check
}

// begin checks that the dataset is not there yet, and keeps other writers out.
func (o *folder) begin(ctx context.Context) error {
	if err := o.checkTarget(); err != nil {
		return err
	}
	return o.lockPart(ctx)
}

// checkTarget returns nil if the folder does not exist or is empty, else ErrWhole or ErrInTheWay.
func (o *folder) checkTarget() error {
	entries, err := os.ReadDir(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %s is not a folder", ErrInTheWay, o.path)
	case err != nil:
		return err
	case len(entries) == 0:
		return o.checkEmpty()
	}
	if err := o.check(context.Background(), o.path); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s is a folder with something in it; write elsewhere", ErrInTheWay, o.path)
}

// checkEmpty returns ErrInTheWay for an empty folder that a rename cannot replace. Finish would
// find that only after all the work.
func (o *folder) checkEmpty() error {
	var own, above unix.Stat_t
	if err := errors.Join(unix.Lstat(o.path, &own), unix.Stat(filepath.Dir(o.path), &above)); err != nil {
		return err
	}
	switch {
	case own.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%w: %s is a symbolic link; write to where it leads", ErrInTheWay, o.path)
	case own.Dev != above.Dev:
		return fmt.Errorf("%w: %s is a mount point; write to a folder in it", ErrInTheWay, o.path)
	}
	return nil
}

// lockDeadline bounds the wait for another writer: a killed writer keeps its lock until its last
// write has ended.
const lockDeadline = time.Second

// lockPart makes the folder of the incomplete dataset, and takes the lock of its only writer.
func (o *folder) lockPart(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < lockDeadline; time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := os.Mkdir(o.part, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		fd, err := unix.Open(o.part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		switch err {
		case nil:
		case unix.ENOENT, unix.EINTR:
			continue
		case unix.ENOTDIR, unix.ELOOP:
			return fmt.Errorf("%w: %s is not a folder", ErrInTheWay, o.part)
		default:
			return &os.PathError{Op: "open", Path: o.part, Err: err}
		}
		o.lock = os.NewFile(uintptr(fd), o.part)
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		mine, statErr := o.lock.Stat()
		there, thereErr := os.Stat(o.part)
		// the folder may have been renamed before the lock
		if err == nil && errors.Join(statErr, thereErr) == nil && os.SameFile(mine, there) {
			return o.locked()
		}
		o.lock.Close()
		if err != nil && err != unix.EINTR && err != unix.EWOULDBLOCK {
			return &os.PathError{Op: "lock", Path: o.part, Err: err}
		}
	}
	return fmt.Errorf("%w: %s; wait until it has ended, or write elsewhere", ErrBusy, o.part)
}

// locked checks the target again under the lock: the previous writer may have finished.
func (o *folder) locked() error {
	err := o.checkTarget()
	if err != nil {
		os.Remove(o.part) // fails if it is not empty
		o.lock.Close()
	}
	return err
}

// left lists the files of an interrupted writer. Other files are ErrInTheWay.
func (o *folder) left() (names []string, err error) {
	entries, err := os.ReadDir(o.part)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !ours(e.Name()) || !e.Type().IsRegular() {
			return nil, fmt.Errorf("%w: %s is not of an interrupted writer; write elsewhere, or remove %s",
				ErrInTheWay, filepath.Join(o.part, e.Name()), o.part)
		}
		names = append(names, e.Name())
	}
	return names, nil
}

func (o *folder) remove(name string) error {
	return os.Remove(filepath.Join(o.part, name))
}

// sync makes removals durable.
func (o *folder) sync() error { return o.lock.Sync() }

func (o *folder) create(name string) (*partFile, error) {
	path := filepath.Join(o.part, name)
	f, err := os.OpenFile(path+partSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, err
	}
	return &partFile{f, path, o}, nil
}

// partFile is a file whose name ends in ".part" until commit. The Writer uses it no more after commit or abort.
type partFile struct {
	*os.File
	path string
	in   *folder
}

func (f *partFile) commit() error {
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.path+partSuffix, f.path); err != nil {
		return err
	}
	return f.in.sync()
}

func (f *partFile) abort() error {
	err := f.Close()
	os.Remove(f.path + partSuffix) // otherwise the next Writer removes it
	return err
}

// finish makes the folder of the complete dataset appear.
func (o *folder) finish() error {
	if err := unix.Rename(o.part, o.path); err != nil { // this may replace an empty folder, and nothing else
		if err == unix.ENOTEMPTY || err == unix.EEXIST || err == unix.ENOTDIR {
			return fmt.Errorf("%w: another program made %s; the dataset is whole in %s, and can be renamed",
				ErrInTheWay, o.path, o.part)
		}
		return fmt.Errorf("the dataset is whole in %s, but: %w", o.part,
			&os.LinkError{Op: "rename", Old: o.part, New: o.path, Err: err})
	}
	above, err := os.Open(filepath.Dir(o.path))
	if err != nil {
		return err
	}
	defer above.Close()
	return above.Sync()
}

// release lets other writers in. It may be called several times.
func (o *folder) release() error {
	if o.lock.Fd() == ^uintptr(0) {
		return nil // released already
	}
	os.Remove(o.part) // fails if it is not empty
	return o.lock.Close()
}
