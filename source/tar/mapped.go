package tar

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// mapFile maps a whole regular file for reading. Errors of the system.
func mapFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < headerBytes {
		return nil, fmt.Errorf("%w: %s is no index of a tar shard", source.ErrCorrupt, path)
	}
	data, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil { // too many mappings, or a file system without them
		data = make([]byte, st.Size)
		return data, source.ReadFull(fd, path, data, 0)
	}
	return data, nil
}

// guarded calls read, which looks into mapped files. An index that somebody cuts under its mapping is an error then, not the end of the process: indexes are replaced by
// renaming, but a disk that fails, or another program, may do it.
func guarded(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover(); r := r.(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("%w: an index was cut while it was in use, or cannot be read; open the source again", source.ErrChanged)
		default:
			panic(r)
		}
	}()
	return read()
}
