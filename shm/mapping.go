package shm

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is the two maps of a segment, aligned so that huge pages of the file can be mapped (see huge.go). The payload is never writable: no stray store can damage a sample, and
// pwrite answers ENOSPC where a store would raise SIGBUS. Neither is populated: page tables for a segment cost 2 MiB a GiB in every process, for pages it may never read.
type mapping struct{ control, payload []byte }

// mapSegment maps a file whose header has passed. ErrMemory when the address space has no room (RLIMIT_AS).
func mapSegment(f *os.File, g *Geometry, readOnly bool) (mapping, error) {
	protection := unix.PROT_READ | unix.PROT_WRITE
	if readOnly {
		protection = unix.PROT_READ
	}
	fd := int(f.Fd())
	var m mapping
	var err error
	if m.control, err = mapFile(fd, 0, g.PayloadOffset, protection); err != nil {
		return m, mapError("control part", g.PayloadOffset, err)
	}
	if m.payload, err = mapFile(fd, g.PayloadOffset, g.PayloadBytes, unix.PROT_READ); err != nil {
		return mapping{}, errors.Join(mapError("payload", g.PayloadBytes, err), m.unmap())
	}
	return m, nil
}

func mapError(part string, n uint64, err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fail(ErrMemory, "map %d bytes of %s: %w; raise the limit of address space (ulimit -v)", n, part, err)
	}
	return fail(ErrSystem, "map %d bytes of %s: %w", n, part, err)
}

// unmap gives both maps back; what was not mapped is no error.
func (m *mapping) unmap() error {
	var err error
	for _, region := range [][]byte{m.control, m.payload} {
		if region != nil {
			err = errors.Join(err, unix.MunmapPtr(unsafe.Pointer(&region[0]), uintptr(len(region))))
		}
	}
	*m = mapping{}
	return err
}

// mapFile maps length bytes of a file, shared, from offset on, a multiple of hugeBytes: at such an address, too. The kernel chooses any multiple of a page, so more is reserved, and
// what lies around given back. Errors of mmap and munmap, behind which nothing stays mapped. The region is the caller's to unmap.
func mapFile(fd int, offset, length uint64, protection int) ([]byte, error) {
	bytes := uintptr(roundUp(length, uint64(os.Getpagesize())))
	room := bytes + hugeBytes
	first, err := unix.MmapPtr(-1, 0, nil, room, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := -uintptr(first) & (hugeBytes - 1)
	at := unsafe.Add(first, before)
	_, err = unix.MmapPtr(fd, int64(offset), at, uintptr(length), protection, unix.MAP_SHARED|unix.MAP_FIXED)
	if err == nil {
		err = unix.MunmapPtr(unsafe.Add(at, bytes), room-before-bytes)
	}
	if err == nil {
		if room = before + bytes; before > 0 {
			err = unix.MunmapPtr(first, before)
		}
	}
	if err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(first, room))
	}
	return unsafe.Slice((*byte)(at), length), nil
}
