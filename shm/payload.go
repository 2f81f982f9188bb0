package shm

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// WritePayload writes p at offset of the payload with pwrite. It continues after short writes and
// signals, and returns the number of bytes written. Errors: ErrFull when no pages are left (ENOSPC,
// EDQUOT), ErrReadOnly, ErrInvalid outside the payload, else ErrSystem.
func (s *Segment) WritePayload(p []byte, offset uint64) (int, error) {
	if err := s.checkRange("write", uint64(len(p)), offset, true); err != nil {
		return 0, err
	}
	if s.backing != nil {
		n, err := s.backing.WriteAt(p, int64(offset))
		if err != nil {
			err = payloadError("write", uint64(len(p)), offset, err)
		}
		return n, err
	}
	if s.file == nil {
		return copy(s.payload[offset:], p), nil
	}
	defer runtime.KeepAlive(s) // otherwise a finalizer may close the descriptor during the call
	fd, done := s.FD(), 0
	for done < len(p) {
		n, err := unix.Pwrite(fd, p[done:], int64(s.PayloadOffset+offset)+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return done, payloadError("write", uint64(len(p)), offset, err)
		default:
			done += n
		}
	}
	return done, nil
}

// ReadPayload fills p from offset of the payload with pread, so that holes read as zeros and stay
// holes. Errors: ErrInvalid outside the payload, ErrFormat when the file ends earlier because a
// process truncated it, else ErrSystem.
func (s *Segment) ReadPayload(p []byte, offset uint64) error {
	if err := s.checkRange("read", uint64(len(p)), offset, false); err != nil {
		return err
	}
	if s.backing != nil {
		if _, err := s.backing.ReadAt(p, int64(offset)); err != nil {
			return payloadError("read", uint64(len(p)), offset, err)
		}
		return nil
	}
	if s.file == nil {
		copy(p, s.payload[offset:])
		return nil
	}
	defer runtime.KeepAlive(s)
	fd := s.FD()
	for len(p) > 0 {
		n, err := unix.Pread(fd, p, int64(s.PayloadOffset+offset))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return payloadError("read", uint64(len(p)), offset, err)
		case n == 0:
			return fail(ErrFormat, "%s ends before byte %d: it was truncated; remove it and create it again",
				s.describe(), s.PayloadOffset+offset)
		default:
			p, offset = p[n:], offset+uint64(n)
		}
	}
	return nil
}

// AllocatePayload allocates the pages of n bytes at offset of the payload. Bytes that no fill
// writes then read as zeros without a hole. It returns the errors of WritePayload.
func (s *Segment) AllocatePayload(offset, n uint64) error {
	if err := s.checkRange("allocate", n, offset, true); err != nil {
		return err
	}
	if s.file == nil || s.backing != nil || n == 0 {
		return nil
	}
	defer runtime.KeepAlive(s)
	if err := memory.Allocate(s.FD(), s.PayloadOffset+offset, n, nil); err != nil {
		return payloadError("allocate", n, offset, err)
	}
	return nil
}

// AllocatedBytes returns the bytes of the file's pages; for a heap segment, its size. With a backing
// it is the file there.
func (s *Segment) AllocatedBytes() (uint64, error) {
	if s.backing != nil {
		n, err := s.backing.AllocatedBytes()
		if err != nil {
			return 0, fail(ErrSystem, "%w", err)
		}
		return n, nil
	}
	if s.file == nil {
		return s.SegmentBytes, nil
	}
	defer runtime.KeepAlive(s)
	var st unix.Stat_t
	if err := unix.Fstat(s.FD(), &st); err != nil {
		return 0, fail(ErrSystem, "stat %s: %w", s.describe(), err)
	}
	return uint64(st.Blocks) * 512, nil
}

func (s *Segment) checkRange(verb string, n, offset uint64, write bool) error {
	switch {
	case write && s.readOnly:
		return fail(ErrReadOnly, "%s %d bytes; attach for writing", verb, n)
	case offset > s.PayloadBytes || n > s.PayloadBytes-offset:
		return fail(ErrInvalid, "%s %d bytes at %d, the payload has %d", verb, n, offset, s.PayloadBytes)
	}
	return nil
}

func payloadError(verb string, n, offset uint64, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fail(ErrFull, "%s %d bytes at %d of the payload: %w; remove caches (stocached gc) or enlarge the tmpfs",
			verb, n, offset, err)
	}
	return fail(ErrSystem, "%s %d bytes at %d of the payload: %w", verb, n, offset, err)
}
