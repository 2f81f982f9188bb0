package block

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// The format of docs/spec/block.md. All constants here are part of it.
const (
	version = 1

	align       = 4096 // alignment of blocks and footers: a page
	tableRecord = 24   // bytes a block in the block table
	indexRecord = 24   // bytes a sample in the index

	trailerBytes = 80
	magic        = "STOCBLK\n"

	maxBlockSamples = 1 << 16
	maxFileSamples  = 1 << 20 // a file with this number takes no further block
	maxBlockBytes   = 1 << 30
	maxFileBytes    = 1 << 50
)

// Offsets in a record of the block table, in one of the index, and in the trailer.
const (
	tableOffset, tableBytes, tableFirst                       = 0, 8, 16
	indexOffset, indexStored, indexLength, indexCRC, indexPad = 0, 8, 12, 16, 20

	trailerFooter, trailerFirst, trailerSamples, trailerBlocks                     = 0, 8, 16, 24
	trailerID, trailerNumber, trailerPad, trailerCRC, trailerVersion, trailerMagic = 32, 48, 52, 64, 68, 72
)

// checksum returns the CRC-32C of bytes.
func checksum(b []byte) uint32 { return crc32.Checksum(b, shm.Castagnoli) }

// aligned rounds up to the next offset at which a block may begin.
func aligned(n int64) int64 { return (n + align - 1) &^ (align - 1) }

// identity is the id of a dataset.
type identity [16]byte

// trailer is the content of the last bytes of a block file.
type trailer struct {
	first   int // number of its first sample in the dataset
	samples int
	blocks  int
	id      identity
	number  int
	crc     uint32
}

// footerBytes returns the bytes of block table, index and trailer.
func (t *trailer) footerBytes() int64 {
	return int64(t.blocks)*tableRecord + int64(t.samples)*indexRecord + trailerBytes
}

// span says where a block lies in its file.
type span struct {
	offset int64
	bytes  int64
	first  int // number of its first sample in the dataset
}

func (s *span) encode(to []byte) []byte {
	to = binary.LittleEndian.AppendUint64(to, uint64(s.offset))
	to = binary.LittleEndian.AppendUint64(to, uint64(s.bytes))
	return binary.LittleEndian.AppendUint64(to, uint64(s.first))
}

// entry is a sample in the index.
type entry struct {
	offset         int64
	stored, length uint32
	crc            uint32
}

func (e *entry) encode(to []byte) []byte {
	to = binary.LittleEndian.AppendUint64(to, uint64(e.offset))
	to = binary.LittleEndian.AppendUint32(to, e.stored)
	to = binary.LittleEndian.AppendUint32(to, e.length)
	to = binary.LittleEndian.AppendUint32(to, e.crc)
	return binary.LittleEndian.AppendUint32(to, 0)
}

// encodeFooter makes the footer of a file and sets t.crc.
func encodeFooter(t *trailer, spans []span, entries []entry) []byte {
	b := make([]byte, 0, t.footerBytes())
	for k := range spans {
		b = spans[k].encode(b)
	}
	for k := range entries {
		b = entries[k].encode(b)
	}
	for _, n := range []int64{t.footerBytes(), int64(t.first), int64(t.samples), int64(t.blocks)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = append(b, t.id[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.number))
	b = append(b, make([]byte, trailerCRC-trailerPad)...)
	t.crc = checksum(b)
	b = binary.LittleEndian.AppendUint32(b, t.crc)
	b = binary.LittleEndian.AppendUint32(b, version)
	return append(b, magic...)
}

// decodeTrailer decodes the last bytes of a file of fileBytes. The footer of the result lies inside
// the file; the rest is not checked yet.
func decodeTrailer(b []byte, fileBytes int64) (t trailer, err error) {
	if string(b[trailerMagic:]) != magic {
		return t, damaged("it does not end in the magic of a block file, but in %q", b[trailerMagic:])
	}
	if v := binary.LittleEndian.Uint32(b[trailerVersion:]); v != version {
		return t, fmt.Errorf("%w: it has version %d of the block format, this program knows %d",
			source.ErrInvalid, v, version)
	}
	footer, first := binary.LittleEndian.Uint64(b[trailerFooter:]), binary.LittleEndian.Uint64(b[trailerFirst:])
	samples, blocks := binary.LittleEndian.Uint64(b[trailerSamples:]), binary.LittleEndian.Uint64(b[trailerBlocks:])
	most := uint64(fileBytes) / min(tableRecord, indexRecord) // so that no product overflows
	switch {
	case samples < 1 || blocks < 1 || samples > most || blocks > samples:
		return t, damaged("its trailer says %d samples in %d blocks, in a file of %d bytes", samples, blocks, fileBytes)
	case first > math.MaxInt64-samples:
		return t, damaged("its trailer says that it begins with sample %d", first)
	}
	t = trailer{first: int(first), samples: int(samples), blocks: int(blocks), id: identity(b[trailerID:]),
		number: int(binary.LittleEndian.Uint32(b[trailerNumber:])),
		crc:    binary.LittleEndian.Uint32(b[trailerCRC:])}
	if want := uint64(t.footerBytes()); footer != want || footer > uint64(fileBytes) {
		return t, damaged("its trailer says %d bytes of footer for %d samples in %d blocks, which take %d; the file has %d",
			footer, samples, blocks, want, fileBytes)
	}
	return t, nil
}

// footer is the footer of a block file: block table, index, trailer. Its bytes may be mapped.
type footer struct {
	trailer
	bytes []byte
	begin int64 // begin of the footer in the file: the end of the blocks
}

func (f *footer) span(k int) span {
	b := f.bytes[k*tableRecord:][:tableRecord]
	return span{int64(binary.LittleEndian.Uint64(b[tableOffset:])),
		int64(binary.LittleEndian.Uint64(b[tableBytes:])), int(binary.LittleEndian.Uint64(b[tableFirst:]))}
}

// entry returns the record of the k-th sample of the file.
func (f *footer) entry(k int) entry {
	b := f.bytes[f.blocks*tableRecord+k*indexRecord:][:indexRecord]
	return entry{int64(binary.LittleEndian.Uint64(b[indexOffset:])),
		binary.LittleEndian.Uint32(b[indexStored:]), binary.LittleEndian.Uint32(b[indexLength:]),
		binary.LittleEndian.Uint32(b[indexCRC:])}
}

// limits bound the samples of a dataset.
type limits struct {
	least, most uint64 // bytes of a sample
	compressed  bool
}

func limitsOf(s *shm.Schema, c Compression) limits {
	l := limits{most: s.SampleBytes, compressed: c == Zstd}
	if !s.Variable {
		l.least = s.SampleBytes
	}
	return l
}

// check returns ErrCorrupt unless the footer and all its records are valid. largest is the size of
// the largest sample.
func (f *footer) check(l limits) (largest uint32, err error) {
	at := len(f.bytes) - trailerBytes
	if crc := checksum(f.bytes[:at+trailerCRC]); crc != f.crc {
		return 0, damaged("its footer has CRC-32C %08x, and says %08x", crc, f.crc)
	}
	if pad := f.bytes[at+trailerPad : at+trailerCRC]; !bytes.Equal(pad, make([]byte, len(pad))) {
		return 0, damaged("reserved bytes of its trailer are not 0")
	}
	k, end := 0, int64(0) // the next sample, and the end of the bytes that are checked
	for b := range f.blocks {
		s, next := f.span(b), f.first+f.samples
		if b+1 < f.blocks {
			next = f.span(b + 1).first
		}
		if s.offset != aligned(end) || s.bytes < 0 || s.bytes > f.begin-s.offset || s.first != f.first+k ||
			next <= s.first || next > f.first+f.samples {
			return 0, damaged("its block %d of %d says %d bytes at %d, samples %d to %d; want offset %d and sample %d "+
				"first, within %d bytes and %d samples",
				b, f.blocks, s.bytes,
				s.offset, s.first, next-1, aligned(end), f.first+k, f.begin, f.samples)
		}
		end = s.offset
		for ; f.first+k < next; k++ {
			e := f.entry(k)
			switch {
			case binary.LittleEndian.Uint32(f.bytes[f.blocks*tableRecord+k*indexRecord+indexPad:]) != 0:
				return 0, damaged("reserved bytes of its sample %d are not 0", f.first+k)
			case e.offset != end || int64(e.stored) > s.offset+s.bytes-end:
				return 0, damaged("its sample %d says %d bytes at %d; want offset %d, within a block that ends at %d",
					f.first+k, e.stored, e.offset, end, s.offset+s.bytes)
			case uint64(e.length) < l.least || uint64(e.length) > l.most:
				return 0, damaged("its sample %d has %d bytes; want %d to %d", f.first+k, e.length, l.least, l.most)
			case e.stored > e.length || e.stored < e.length && !l.compressed:
				return 0, damaged("its sample %d of %d bytes takes %d, compressed: %v", f.first+k, e.length, e.stored, l.compressed)
			}
			largest = max(largest, e.length)
			end += int64(e.stored)
		}
		if end != s.offset+s.bytes {
			return 0, damaged("its block %d ends at %d, and its samples at %d", b, s.offset+s.bytes, end)
		}
	}
	if aligned(end) != f.begin {
		return 0, damaged("its blocks end at %d, and its footer begins at %d", end, f.begin)
	}
	return largest, nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{source.ErrCorrupt}, args...)...)
}
