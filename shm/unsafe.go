package shm

import (
	"sync/atomic"
	"unsafe"
)

// word returns the 64-bit word at offset of a segment's control part. It is the only unsafe
// arithmetic of the package. It is sound because
//   - the slice keeps its memory alive (mapped memory until Close: see Segment.Close), and the
//     index expression bounds the first byte;
//   - each offset of the format is a multiple of 8 and the base is page-aligned (8-aligned on the
//     heap), so the word is naturally aligned and ends inside the slice;
//   - atomic.Uint64 is 8 bytes without pointers, so the garbage collector ignores it.
func word(control []byte, offset uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&control[offset]))
}
