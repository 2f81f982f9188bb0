package shm

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// mapping holds the two maps of a segment, aligned so that the kernel can map huge pages (see
// huge.go).
//
// The payload is never writable: no stray store can damage a sample, and pwrite returns ENOSPC
// where a store would raise SIGBUS. Neither map is populated: page tables cost 2 MiB for each GiB
// in each process, for pages that it may never read. The payload is excluded from core dumps and
// from mlockall, because both would allocate all pages of the cache.
type mapping struct{ control, payload []byte }

// mapSegment maps a file whose header is valid. It returns ErrMemory when the address space is too
// small (RLIMIT_AS), or when this process locks its memory and the map exceeds RLIMIT_MEMLOCK.
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
		return fail(ErrMemory,
			"map %d bytes of %s: %w: this process locks its memory (mlockall) and the map exceeds its limit "+
				"(RLIMIT_MEMLOCK); raise the limit (ulimit -l)", n, part, err)
	}
	return fail(ErrSystem, "map %d bytes of %s: %w", n, part, err)
}

// unmap unmaps both maps. A missing map is no error.
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

// keepWords makes the control part empty pages that stay at its address until no goroutine can reach the segment. The
// memory of the file is free at once.
func (m *mapping) keepWords(s *Segment) {
	control := m.control
	// after a failure the pages of the file stay as long
	_, _ = unix.MmapPtr(-1, 0, unsafe.Pointer(&control[0]), uintptr(len(control)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	runtime.AddCleanup(s, func(region []byte) { _ = unmapFile(region) }, control)
	m.control = nil
}

// mapControl maps the control part of a file. That part is never smaller than a huge page.
func mapControl(f *os.File, length uint64, writable bool) ([]byte, error) {
	protection := unix.PROT_READ
	if writable {
		protection |= unix.PROT_WRITE
	}
	return mapAligned(int(f.Fd()), 0, length, protection)
}

// mapPayload maps the payload of a file, which begins at a multiple of hugeBytes. mmap-go maps a
// payload that is smaller than a huge page. For a larger one it can neither choose an address nor
// map without read access, and mlockall allocates the pages of a readable map at once.
func mapPayload(f *os.File, offset, length uint64) (region []byte, err error) {
	if length < hugeBytes {
		region, err = mmap.MapRegion(f, int(length), mmap.RDONLY, 0, int64(offset))
	} else {
		region, err = mapAligned(int(f.Fd()), offset, length, unix.PROT_NONE)
	}
	if err != nil {
		return nil, err
	}
	_ = unix.Munlock(region) // a failure of these two calls is harmless
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

// mapAligned maps at an address that is a multiple of hugeBytes. The kernel chooses any multiple of
// a page, so mapAligned reserves more and unmaps the rest. It returns errors of mmap and munmap;
// then nothing stays mapped.
func mapAligned(fd int, offset, length uint64, protection int) ([]byte, error) {
	bytes := uintptr(roundUp(length, uint64(os.Getpagesize())))
	reserved := bytes + hugeBytes
	first, err := unix.MmapPtr(-1, 0, nil, reserved, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	// Otherwise the reservation counts against RLIMIT_MEMLOCK, and the map that replaces it does
	// too.
	_ = unix.Munlock(unsafe.Slice((*byte)(first), reserved))
	before := -uintptr(first) & (hugeBytes - 1)
	at := unsafe.Add(first, before)
	_, err = unix.MmapPtr(fd, int64(offset), at, uintptr(length), protection, unix.MAP_SHARED|unix.MAP_FIXED)
	if err == nil {
		err = unix.MunmapPtr(unsafe.Add(at, bytes), reserved-before-bytes)
	}
	if err == nil {
		if reserved = before + bytes; before > 0 {
			err = unix.MunmapPtr(first, before)
		}
	}
	if err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(first, reserved))
	}
	return unsafe.Slice((*byte)(at), length), nil
}
