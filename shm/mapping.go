package shm

import (
	"errors"
	"os"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// Which library does what: mmap-go makes and removes the two maps, because MapRegion says exactly what is needed (a shared map of part of a file,
// read-only or read-write) and a map without it would be the same call with more arguments. It knows nothing of the rest (O_TMPFILE, linkat, memfd
// and seals, fallocate, statfs, open-file-description locks), which is golang.org/x/sys/unix. Neither populates: page tables for a
// segment cost 2 MiB a GiB in every process, for pages it may never read.

// mapping is the two maps of a segment. The payload is never writable: no stray store can damage a sample, and pwrite answers ENOSPC
// where a store would raise SIGBUS.
type mapping struct{ control, payload mmap.MMap }

// mapSegment maps a file whose header has passed. ErrMemory when the address space has no room (RLIMIT_AS).
func mapSegment(f *os.File, g *Geometry, readOnly bool) (mapping, error) {
	prot := mmap.RDWR
	if readOnly {
		prot = mmap.RDONLY
	}
	var m mapping
	var err error
	if m.control, err = mmap.MapRegion(f, int(g.PayloadOffset), prot, 0, 0); err != nil {
		return m, mapError("control part", g.PayloadOffset, err)
	}
	if m.payload, err = mmap.MapRegion(f, int(g.PayloadBytes), mmap.RDONLY, 0, int64(g.PayloadOffset)); err != nil {
		m.control.Unmap()
		return mapping{}, mapError("payload", g.PayloadBytes, err)
	}
	return m, nil
}

func mapError(part string, n uint64, err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fail(ErrMemory, "map %d bytes of %s: %w; raise the limit of address space (ulimit -v)", n, part, err)
	}
	return fail(ErrSystem, "map %d bytes of %s: %w", n, part, err)
}

func (m *mapping) unmap() error {
	var err error
	for _, region := range []*mmap.MMap{&m.control, &m.payload} {
		if *region != nil {
			err = errors.Join(err, region.Unmap())
		}
	}
	return err
}
