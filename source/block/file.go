package block

import (
	"context"
	"fmt"
	"sort"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/stocached/stocached/source"
)

// file is an open block file. Its footer is mapped, so its memory does not grow with the samples.
type file struct {
	*source.File
	footer
	limits
	index *source.Map
	block int // number of its first block in the dataset
}

// openFile opens a block file and checks its footer. largest is the size of its largest sample.
// Errors: ErrCorrupt and ErrInvalid with the path, errors of the system.
func openFile(ctx context.Context, place *source.Place, path string, l limits) (f *file, largest uint32, err error) {
	opened, err := place.Open(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	f = &file{File: opened, limits: l}
	if largest, err = f.readFooter(ctx); err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	return f, largest, nil
}

func (f *file) readFooter(ctx context.Context) (largest uint32, err error) {
	size := f.Stamp.Bytes
	if size < trailerBytes {
		return 0, damaged("it has %d bytes, too few for a block file", size)
	}
	end := make([]byte, trailerBytes)
	if err := f.ReadAt(ctx, end, size-trailerBytes); err != nil {
		return 0, err
	}
	if f.trailer, err = decodeTrailer(end, size); err != nil {
		return 0, err
	}
	f.begin = size - f.footerBytes()
	if f.index, err = f.Map(ctx, f.begin, int(f.footerBytes())); err != nil {
		return 0, err
	}
	f.bytes = f.index.Bytes
	err = f.look(func() (err error) { largest, err = f.check(f.limits); return err })
	f.index.Forget()
	return largest, err
}

// look is Look for a function that can fail.
func (f *file) look(work func() error) (err error) {
	if fault := f.Look(func() { err = work() }); fault != nil {
		return fault
	}
	return err
}

// Close unmaps and closes. No reads may be inflight.
func (f *file) Close() error {
	if err := f.index.Close(); err != nil {
		return err
	}
	return f.File.Close()
}

// find returns the entry of the k-th sample of the file. Even if the file changes during the call, the
// entry lies inside the file and within the limits of samples.
func (f *file) find(k int) (e entry, err error) {
	if err := f.Look(func() { e = f.entry(k) }); err != nil {
		return entry{}, err
	}
	if e.offset < 0 || e.offset > f.begin-int64(e.stored) || uint64(e.length) < f.least ||
		uint64(e.length) > f.most || e.stored > e.length {
		return entry{}, f.indexChanged()
	}
	return e, nil
}

// indexChanged returns the error for a record that was valid when the file was opened.
func (f *file) indexChanged() error {
	if err := f.ReadAt(context.Background(), nil, 0); err != nil {
		return err
	}
	return damaged("%s: its index has changed since it was opened", f.Path)
}

// blockSpan returns the span of the k-th block of the file, and its number of samples.
func (f *file) blockSpan(k int) (s span, n int, err error) {
	err = f.Look(func() {
		s, n = f.span(k), f.first+f.samples
		if k+1 < f.blocks {
			n = f.span(k + 1).first
		}
		n -= s.first
	})
	if err == nil && (s.offset < 0 || s.bytes < 0 || s.offset > f.begin-s.bytes || s.first < f.first || n < 1 ||
		n > f.first+f.samples-s.first) {
		err = f.indexChanged()
	}
	return s, n, err
}

// blockOf returns the block of the file that holds sample i of the dataset; -1 when the file has
// changed.
func (f *file) blockOf(i int) (k int) {
	if f.Look(func() { k = sort.Search(f.blocks, func(k int) bool { return f.span(k).first > i }) - 1 }) != nil {
		return -1
	}
	return k
}

// unpack returns the bytes of sample i of the dataset from its stored bytes: stored itself, or the
// result of decompression into dst, which is large enough. It returns ErrCorrupt.
func (f *file) unpack(i int, e entry, stored, dst []byte, verify bool) ([]byte, error) {
	sample := stored
	if e.stored < e.length {
		var err error
		if sample, err = decoder().DecodeAll(stored, dst[:0:e.length]); err != nil {
			return nil, damaged("%s: sample %d, %d bytes at %d: it does not decompress: %v", f.Path, i, e.stored, e.offset, err)
		}
		if uint32(len(sample)) != e.length {
			return nil, damaged("%s: sample %d, %d bytes at %d: it decompresses to %d bytes, want %d", f.Path, i,
				e.stored, e.offset, len(sample), e.length)
		}
	}
	if verify {
		if crc := checksum(sample); crc != e.crc {
			return nil, damaged("%s: sample %d, %d bytes at %d: its bytes have CRC-32C %08x, the index says %08x",
				f.Path, i, e.stored, e.offset, crc, e.crc)
		}
	}
	return sample, nil
}

// held is a block in memory.
type held struct {
	span
	entries []entry // entries of its samples
	stored  *scratch
}

// read reads a block of the file with one pread.
func (f *file) read(ctx context.Context, k int) (h held, err error) {
	s, n, err := f.blockSpan(k)
	if err != nil {
		return h, err
	}
	h = held{s, make([]entry, n), buffer(int(s.bytes))}
	if err = f.ReadAt(ctx, h.stored.bytes, s.offset); err == nil {
		for j := range h.entries {
			if h.entries[j], err = f.find(s.first - f.first + j); err != nil {
				break
			}
			if at := h.entries[j].offset - s.offset; at < 0 || at > s.bytes-int64(h.entries[j].stored) {
				err = f.indexChanged()
				break
			}
		}
	}
	if err != nil {
		h.stored.free()
	}
	return h, err
}

// each calls call for each sample of a block, and then frees the block.
func (f *file) each(h held, verify bool, call func(i int, sample []byte) error) error {
	sample := buffer(0)
	defer func() { h.stored.free(); sample.free() }()
	for j, e := range h.entries {
		if e.stored < e.length {
			sample.grow(int(e.length))
		}
		at := e.offset - h.offset
		got, err := f.unpack(h.first+j, e, h.stored.bytes[at:at+int64(e.stored):at+int64(e.stored)], sample.bytes, verify)
		if err != nil {
			return err
		}
		if err := call(h.first+j, got); err != nil {
			return err
		}
	}
	return nil
}

// decoder decodes frames for all readers. It keeps no state between frames.
var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
})

// scratch is reused memory.
type scratch struct{ bytes []byte }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// keptScratch is the largest scratch that the pool keeps: more than a usual block takes.
const keptScratch = 64 << 20

func buffer(n int) *scratch {
	b := scratches.Get().(*scratch)
	b.grow(n)
	return b
}

// grow sets the length of bytes to n. The content is lost.
func (b *scratch) grow(n int) {
	if cap(b.bytes) < n {
		b.bytes = make([]byte, n)
	}
	b.bytes = b.bytes[:n]
}

func (b *scratch) free() {
	if cap(b.bytes) <= keptScratch {
		scratches.Put(b)
	}
}
