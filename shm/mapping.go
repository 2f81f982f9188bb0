package shm

import (
	"errors"
	"os"
	"unsafe"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// mapping is the two maps of a segment, aligned so that huge pages of the file can be mapped (see huge.go). The payload is never writable: no stray store can damage a sample, and
// pwrite answers ENOSPC where a store would raise SIGBUS. Neither is populated: page tables for a segment cost 2 MiB a GiB in every process, for pages it may never read. The payload is
// no part of core dumps, and not locked in a program that locks its memory (mlockall): both would take all pages of the cache, and a dump would write them as well.
type mapping struct{ control, payload []byte }

// mapSegment maps a file whose header has passed. ErrMemory when the address space has no room (RLIMIT_AS), or this process locks its memory and may not lock so much (RLIMIT_MEMLOCK).
func mapSegment(f *os.File, g *Geometry, readOnly bool) (mapping, error) {
	var m mapping
	var err error
	if m.control, err = mapControl(f, g.PayloadOffset, !readOnly); err != nil {
		return m, mapError("control part", g.PayloadOffset, err)
	}
	if m.payload, err = mapPayload(f, g.PayloadOffset, g.PayloadBytes); err != nil {
		return mapping{}, errors.Join(mapError("payload", g.PayloadBytes, err), m.unmap())
	}
	return m, nil
}

func mapError(part string, n uint64, err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fail(ErrMemory, "map %d bytes of %s: %w; raise the limit of address space (ulimit -v)", n, part, err)
	}
	if errors.Is(err, unix.EAGAIN) {
		return fail(ErrMemory, "map %d bytes of %s: %w: this process locks its memory (mlockall) and may not lock so much (RLIMIT_MEMLOCK); raise the limit (ulimit -l)", n, part, err)
	}
	return fail(ErrSystem, "map %d bytes of %s: %w", n, part, err)
}

// unmap gives both maps back; what was not mapped is no error.
func (m *mapping) unmap() error {
	var err error
	for _, region := range [][]byte{m.control, m.payload} {
		if region != nil {
			err = errors.Join(err, unmapFile(region))
		}
	}
	*m = mapping{}
	return err
}

// mapControl maps the control part of a file, which is never shorter than a huge page.
func mapControl(f *os.File, length uint64, writable bool) ([]byte, error) {
	protection := unix.PROT_READ
	if writable {
		protection |= unix.PROT_WRITE
	}
	return mapAligned(int(f.Fd()), 0, length, protection)
}

// mapPayload maps the payload of a file, which begins at a multiple of hugeBytes. What is shorter than a block lies anywhere, by mmap-go; that library cannot choose an address, which longer
// parts need, nor map without reading: mlockall takes the pages of a readable map at once.
func mapPayload(f *os.File, offset, length uint64) (region []byte, err error) {
	if length < hugeBytes {
		region, err = mmap.MapRegion(f, int(length), mmap.RDONLY, 0, int64(offset))
	} else {
		region, err = mapAligned(int(f.Fd()), offset, length, unix.PROT_NONE)
	}
	if err != nil {
		return nil, err
	}
	_ = unix.Munlock(region) // that the one or the other cannot be done changes nothing else
	_ = unix.Madvise(region, unix.MADV_DONTDUMP)
	if err = unix.Mprotect(region, unix.PROT_READ); err != nil {
		return nil, errors.Join(err, unmapFile(region))
	}
	return region, nil
}

func unmapFile(region []byte) error {
	if len(region) < hugeBytes {
		return (*mmap.MMap)(&region).Unmap()
	}
	return unix.MunmapPtr(unsafe.Pointer(&region[0]), uintptr(len(region)))
}

// mapAligned maps at an address that is a multiple of hugeBytes. The kernel chooses any multiple of a page, so more is reserved, and what lies around given back. Errors of mmap and munmap,
// behind which nothing stays mapped.
func mapAligned(fd int, offset, length uint64, protection int) ([]byte, error) {
	bytes := uintptr(roundUp(length, uint64(os.Getpagesize())))
	room := bytes + hugeBytes
	first, err := unix.MmapPtr(-1, 0, nil, room, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	_ = unix.Munlock(unsafe.Slice((*byte)(first), room)) // or it counts against RLIMIT_MEMLOCK beside what takes its place
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
