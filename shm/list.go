package shm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// Listed is a cache that List or ListUnnamed found. They do not attach to it.
type Listed struct {
	Path      string // path for Open: of the file, or /proc/<pid>/fd/<fd> for a cache without a name
	PIDs      []int  // cache without a name: the readable processes that hold it
	Allocated uint64 // bytes of its pages
	FileBytes uint64 // size of the file
	Control   bool   // it is the control part of a disk cache: ListControls
	Err       error  // why it cannot be attached to; Header and Geometry are zero then
	id        memory.Inode
	Header
	Geometry
}

// List finds the named caches in a directory; "" means DefaultDir. It returns each regular file
// that is no valid cache with an error, and skips other things. A directory that does not exist has
// none.
func List(dir string) ([]Listed, error) {
	return listDir(filepath.Clean(cmp.Or(dir, DefaultDir())), false)
}

func listDir(dir string, control bool) ([]Listed, error) {
	fd, err := openDir(dir, false)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, dirError("read", dir, err)
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var found []Listed
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		fd, _, err := openFile(path, true)
		l := Listed{Path: path, Control: control, Err: err}
		if err == nil {
			l.inspect(fd)
			unix.Close(fd)
		}
		found = append(found, l)
	}
	return found, nil
}

// ListUnnamed finds the caches without a name, each once, through the descriptors of the processes
// that this user may read. A memfd that is not sealed yet is being made, and no cache.
func ListUnnamed() ([]Listed, error) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fail(ErrSystem, "caches without a name are found through /proc: %w", err)
	}
	at := map[memory.Inode]int{}
	var found []Listed
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		links, _ := os.ReadDir(dir) // another user's process, or it has ended
		for _, link := range links {
			path := filepath.Join(dir, link.Name())
			if target, err := os.Readlink(path); err != nil || !strings.HasPrefix(target, "/memfd:"+memfdPrefix) {
				continue
			}
			var st unix.Stat_t
			if unix.Stat(path, &st) != nil || int(st.Uid) != os.Geteuid() {
				continue
			}
			id := inodeOf(&st)
			k, known := at[id]
			if !known {
				fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					continue // the process has closed it
				}
				seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
				if err != nil || seals&unix.F_SEAL_SEAL == 0 {
					unix.Close(fd)
					continue
				}
				k = len(found)
				at[id] = k
				found = append(found, Listed{Path: path})
				found[k].inspect(fd)
				unix.Close(fd)
			}
			if l := &found[k]; !slices.Contains(l.PIDs, pid) {
				l.PIDs = append(l.PIDs, pid)
			}
		}
	}
	return found, nil
}

// Probe says which locks are held. Of a segment of another version it knows those that every version has, and not
// those of client records. Errors: ErrNotFound (another segment has its place by now), ErrPermission, ErrSystem.
func (l *Listed) Probe() (Probe, error) {
	fd, err := l.open(true)
	if err != nil {
		return Probe{}, err
	}
	defer unix.Close(fd)
	return probeFile(fd, l.ClientRecords)
}

// open opens the file of a listed segment, which must still be that segment.
func (l *Listed) open(readOnly bool) (fd int, err error) {
	fd, isReadOnly, err := openFile(l.Path, readOnly)
	if err != nil {
		return -1, err
	}
	now := Listed{Path: l.Path, Control: l.Control}
	now.inspect(fd)
	switch {
	case isReadOnly && !readOnly:
		err = fail(ErrPermission, "%s is read-only", l.Path)
	case now.UUID != l.UUID:
		err = fail(ErrNotFound, "%s is another segment by now", l.Path)
	case l.Err != nil:
		err = checkMagic(fd, l.Path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// inspect reads a segment's header through a descriptor. It maps nothing.
func (l *Listed) inspect(fd int) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		l.Err = fail(ErrSystem, "stat %s: %w", l.Path, err)
		return
	}
	l.id, l.FileBytes, l.Allocated = inodeOf(&st), uint64(st.Size), uint64(st.Blocks)*512
	page, err := readHeader(fd)
	if err == nil {
		whole := l.FileBytes
		if l.Control && len(page) == HeaderBytes { // its header is that of a whole segment
			whole = binary.LittleEndian.Uint64(page[HeaderSegmentBytes:])
		}
		l.Header, l.Geometry, err = DecodeHeader(page, whole)
	}
	if err == nil && l.Control && l.FileBytes != l.PayloadOffset {
		err = fail(ErrFormat, "the control part has %d bytes, its header says %d", l.FileBytes, l.PayloadOffset)
	}
	if err != nil {
		l.Err = fmt.Errorf("%s: %w", l.Path, err)
		l.Header, l.Geometry = Header{}, Geometry{}
	}
}
