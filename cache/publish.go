package cache

import (
	"errors"
	"hash/crc32"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// writePiece is the number of bytes that write writes and then checksums. It is smaller than the
// processor's cache, and so large that most samples take one system call.
const writePiece = 256 << 10

// write writes the parts of a sample into its place, one after the other, and computes the
// checksum. Full means no pages. After Full or an error the claim is aborted.
func (c *Cache) write(f *fill, parts [][]byte) (Result, error) {
	at, half := uint64(0), (f.length+1)/2
	for _, p := range parts {
		for len(p) > 0 {
			piece := p[:min(len(p), writePiece)]
			if fault.Enabled && at < half { // a test can kill the process after half of the bytes
				piece = piece[:min(uint64(len(piece)), half-at)]
			}
			if _, err := c.writePayload(f, piece, at); err != nil {
				return c.writeFailed(f, err)
			}
			f.crc = crc32.Update(f.crc, shm.Castagnoli, piece)
			p, at = p[len(piece):], at+uint64(len(piece))
			if fault.Enabled && at == half {
				fault.At("write.half")
			}
		}
	}
	fault.At("write.done")
	return Stored, nil
}

// writeFailed aborts a fill after a failed write.
func (c *Cache) writeFailed(f *fill, err error) (Result, error) {
	if lost := c.abort(f); lost != nil {
		return Busy, errors.Join(err, lost)
	}
	if errors.Is(err, shm.ErrFull) {
		return Full, nil
	}
	return Busy, err
}

// publish makes a written sample READY. It returns ErrLost.
func (c *Cache) publish(f *fill) error {
	c.settle(f)
	c.space.written(f)
	content, meta := f.crc, c.seg.Meta(f.sample)
	if c.variable {
		content = uint32(f.length)
		c.seg.Sum(f.sample).Store(uint64(f.crc))
	}
	meta.Store(uint64(shm.Meta(meta.Load()).Published(content)))
	fault.At("publish.meta")
	ready := c.layout.Pack(shm.Ready, 0, c.layout.Generation(f.word), c.layout.Place(f.word))
	// The CAS releases payload and meta to readers that load the word.
	if !c.seg.Word(f.sample).CompareAndSwap(uint64(f.word), uint64(ready)) {
		return c.lost(f)
	}
	fault.At("publish.word")
	c.seg.Persist(f.sample)
	c.dropEntry(f.entry)
	fault.At("publish.entry")
	c.count(shm.Stored, 1)
	c.count(shm.StoredBytes, f.length)
	return nil
}

// abort gives a claim up. Its slots become free; an extent stays with the sample. It returns
// ErrLost.
func (c *Cache) abort(f *fill) error {
	c.settle(f)
	kept := c.space.free(f)
	empty := c.layout.Pack(shm.Empty, 0, c.layout.Generation(f.word)+1, kept)
	if !c.seg.Word(f.sample).CompareAndSwap(uint64(f.word), uint64(empty)) {
		return c.lost(f)
	}
	fault.At("abort.word")
	c.seg.Persist(f.sample)
	c.dropEntry(f.entry)
	fault.At("abort.entry")
	c.count(shm.Aborted, 1)
	return nil
}
