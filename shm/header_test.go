package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// refix corrects the checksum of a changed header, as a malicious writer would.
func refix(page []byte) {
	binary.LittleEndian.PutUint32(page[HeaderCRC:], headerCRC(page[:HeaderBytes]))
}

// Ensure that each byte of the header counts: a flipped byte makes attach refuse the segment, from
// a file and from memory. A byte of the version gives the version error.
func TestEveryByteFlipped(t *testing.T) {
	image := unpackGolden(t)
	path := filepath.Join(tempDir(t), "golden")
	fatal.If(t, os.WriteFile(path, image, 0o600))
	f := fatal.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	for k := range HeaderBytes {
		kind := ErrFormat
		if k >= HeaderVersion && k < HeaderCRC {
			kind = ErrVersion
		}
		for _, mask := range []byte{0x01, 0x80, 0xff} {
			page := bytes.Clone(image[:HeaderBytes])
			page[k] ^= mask
			_, _, err := DecodeHeader(page, uint64(len(image)))
			expect.Error(t, err, kind)
			if mask != 0xff {
				continue
			}
			fatal.Value(f.WriteAt(page[k:k+1], int64(k)))(t)
			s, err := Open(path, OpenOptions{})
			if expect.Error(t, err, kind); err == nil {
				s.Close()
				t.Fatalf("byte %d flipped by %#x, and attached", k, mask)
			}
		}
		fatal.Value(f.WriteAt(image[k:k+1], int64(k)))(t)
	}
	open(t, path, OpenOptions{})
}

// Ensure that a header with a wrong value and a correct checksum is refused too, unless the value
// may vary freely: the geometry depends on no byte that may change.
func TestEveryByteOfALiar(t *testing.T) {
	image := unpackGolden(t)[:HeaderBytes]
	_, honest, err := DecodeHeader(image, 2101248)
	fatal.If(t, err)
	free := map[int]string{
		HeaderSamples:             "9 samples, whose index takes the same page",
		HeaderFields + FieldDType: "int8, as large as uint8", HeaderFields + FieldBytes + FieldDType: "uint64, as large as int64"}
	for what, span := range map[string][2]int{"uuid": {HeaderUUID, 16}, "time": {HeaderCreated, 8},
		"uid": {HeaderUID, 4}, "limit": {HeaderLimitBytes, 8},
		"decode": {HeaderDecode, 1}, "fingerprint": {HeaderFingerprint, len("golden fingerprint") + 1}, "name": {HeaderName,
			len("golden")}, "field name": {HeaderFields, len("image") + 1},
		"other field name": {HeaderFields + FieldBytes, len("label") + 1}} {
		for k := range span[1] {
			free[span[0]+k] = what
		}
	}
	for k := range HeaderBytes {
		if k >= HeaderCRC && k < HeaderCRC+4 {
			continue
		}
		page := bytes.Clone(image)
		page[k] ^= 0x01
		refix(page)
		_, g, err := DecodeHeader(page, 2101248)
		what, ok := free[k]
		switch {
		case ok && err != nil:
			t.Errorf("byte %d (%s): %v", k, what, err)
		case !ok && err == nil:
			t.Errorf("byte %d is %#x instead of %#x, and attach accepts it", k, page[k], image[k])
		case err == nil:
			if g.Samples = honest.Samples; g != honest {
				t.Errorf("byte %d (%s): the geometry is %+v, was %+v", k, what, g, honest)
			}
		}
	}
}

// Ensure that a file of any other length than in its header is refused, and that no length crashes.
func TestEveryTruncation(t *testing.T) {
	image := unpackGolden(t)
	path := filepath.Join(tempDir(t), "golden")
	fatal.If(t, os.WriteFile(path, image, 0o600))
	check := func(n int64) {
		fatal.If(t, os.Truncate(path, n))
		s, err := Open(path, OpenOptions{})
		if expect.Error(t, err, ErrFormat, fmt.Sprint(n)); err == nil {
			s.Close()
			t.Fatalf("attached to %d of %d bytes", n, len(image))
		}
	}
	for _, n := range []int64{1, 4096} {
		check(int64(len(image)) + n)
	}
	for n := int64(len(image)) - 1; n > HeaderBytes+64; n -= 4093 {
		check(n)
	}
	for n := int64(HeaderBytes + 64); n >= 0; n-- {
		check(n)
	}
	for n := range HeaderBytes {
		_, _, err := DecodeHeader(image[:n], uint64(n))
		expect.Error(t, err, ErrFormat)
	}
}

// Ensure that other versions are refused in both directions, with both versions in the message, and
// that reserved bytes are 0.
func TestVersions(t *testing.T) {
	image := unpackGolden(t)[:HeaderBytes]
	decode := func(change func(page []byte)) error {
		page := bytes.Clone(image)
		change(page)
		refix(page)
		_, _, err := DecodeHeader(page, 2101248)
		return err
	}
	le := binary.LittleEndian
	expect.Error(t, decode(func(p []byte) { le.PutUint32(p[HeaderVersion:], 0) }), ErrVersion, "layout 0,", "reads 1;")
	expect.Error(t, decode(func(p []byte) { le.PutUint32(p[HeaderVersion:], 2) }), ErrVersion, "layout 2,", "reads 1;")
	expect.Error(t, decode(func(p []byte) { le.PutUint32(p[HeaderVersion:], 1<<16|1) }), ErrVersion, "layout 65537,", "reads 1;")
	expect.Error(t, decode(func(p []byte) { le.PutUint32(p[HeaderSignature:], 1) }), ErrVersion, "0x1",
		fmt.Sprintf("%#x", Signature()))
	expect.Error(t, decode(func(p []byte) { le.PutUint32(p[HeaderEndianMark:], 0x04030201) }), ErrVersion, "0x4030201")
	expect.Error(t, decode(func(p []byte) { p[1000] = 1 }), ErrFormat, "byte 1000")
	expect.Error(t, decode(func(p []byte) {
		le.PutUint32(p[HeaderFlags:], le.Uint32(p[HeaderFlags:])|1<<6)
	}), ErrFormat, "unknown flags 0x40")
}

// Ensure that a segment says how to decode its files, in UTF-8, and that zeros follow the text.
func TestDecodeOfFiles(t *testing.T) {
	header := func(decode string, change func(page []byte)) (Header, error) {
		h, g, err := (&Options{Samples: 3, Variable: true, Limit: 8 << 20, Decode: decode}).Plan()
		fatal.If(t, err)
		h.Stamp()
		page := h.Encode(&g)
		change(page)
		refix(page)
		h, _, err = DecodeHeader(page, g.SegmentBytes)
		return h, err
	}
	for _, decode := range []string{"", "height=2 width=3"} {
		if h, err := header(decode, func([]byte) {}); err != nil || h.Decode != decode {
			t.Errorf("%q: %q, %v", decode, h.Decode, err)
		}
	}
	_, err := header("x=1", func(p []byte) { p[HeaderDecode] = 0xff })
	expect.Error(t, err, ErrFormat, "not UTF-8")
	_, err = header("x=1", func(p []byte) { p[HeaderDecode+DecodeBytes-1] = 1 })
	expect.Error(t, err, ErrFormat, "byte 511")
}

// Ensure that lengths of lists take 8 bytes a sample behind the checksums, that a header with the flag and one without it
// have exactly the offset that follows, and that all else of a segment without them is as before.
func TestLengths(t *testing.T) {
	const samples = 1_000_000
	for _, policy := range []Policy{PolicyFirstCome, PolicyCost, PolicyClock} {
		plan := func(lengths bool) (Header, Geometry) {
			h, g, err := (&Options{Samples: samples, Variable: true, Limit: 256 << 20, Policy: policy, SlotBytes: slotsOf(policy),
				Lengths: lengths}).Plan()
			fatal.If(t, err)
			h.Stamp()
			return h, g
		}
		plain, without := plan(false)
		listed, with := plan(true)
		if without.LengthsOffset != 0 || with.LengthsOffset != roundUp(with.SumsOffset+samples*SumRecordBytes, RegionAlign) {
			t.Errorf("%v: lengths at %d without the flag, at %d with it", policy, without.LengthsOffset, with.LengthsOffset)
		}
		behind, align := with.PayloadOffset, uint64(PayloadAlign)
		if with.SlotTableOffset != 0 {
			behind, align = with.SlotTableOffset, RegionAlign
		}
		if behind != roundUp(with.LengthsOffset+8_000_000, align) {
			t.Errorf("%v: lengths of %d samples lie at %d, and the next region at %d", policy, samples, with.LengthsOffset, behind)
		}
		for _, c := range []struct {
			h      Header
			g      Geometry
			offset uint64
			flags  uint32
			word   string
		}{{plain, without, 4096, 0, "byte 177"}, {plain, without, 1<<64 - 4096, 0, "byte 177"}, {listed, with, 0, 0, "byte 17"},
			{listed, with, with.LengthsOffset + 4096, 0, "byte 177"}, {listed, with, with.SumsOffset, 0, "byte 17"},
			{plain, without, 0, FlagLengths, "byte "}, {listed, with, with.LengthsOffset, 1 << 6, "unknown flags 0x40"}} {
			page := c.h.Encode(&c.g)
			binary.LittleEndian.PutUint64(page[HeaderLengthsOffset:], c.offset)
			binary.LittleEndian.PutUint32(page[HeaderFlags:], c.h.Flags|c.flags)
			refix(page)
			_, _, err := DecodeHeader(page, c.g.SegmentBytes)
			expect.Error(t, err, ErrFormat, c.word)
		}
		for _, c := range []struct {
			h Header
			g Geometry
		}{{plain, without}, {listed, with}} {
			if h, g, err := DecodeHeader(c.h.Encode(&c.g), c.g.SegmentBytes); err != nil || g != c.g || h.Flags != c.h.Flags {
				t.Errorf("%v: %+v, %v", policy, g, err)
			}
		}
	}
	_, err := (&Options{Samples: 9, SampleBytes: 8, Lengths: true}).SegmentBytes()
	expect.Error(t, err, ErrInvalid, "lengths: only a variable-size cache")
}

// slotsOf is the size of slots that a test gives a policy: 0 without slots.
func slotsOf(policy Policy) uint64 {
	if policy.Evicts() {
		return 256
	}
	return 0
}

// Ensure that numbers that overflow, overlap or leave the file are refused, with a correct checksum
// and all else consistent.
func TestLyingNumbers(t *testing.T) {
	image := unpackGolden(t)[:HeaderBytes]
	for _, c := range []struct {
		offset int
		width  int
		values []uint64
	}{
		{HeaderSamples, 8, []uint64{0, MaxSamples + 1, 1 << 60, 1<<64 - 1}},
		{HeaderSlots, 8, []uint64{0, 9, MaxSlots + 1, 1 << 61, 1<<64 - 1}},
		{HeaderSampleBytes, 8, []uint64{0, 1, 17, MaxSampleBytes + 1, 1<<64 - 1}},
		{HeaderSlotStride, 8, []uint64{0, 8, 32, 1 << 63}},
		{HeaderClientRecords, 4, []uint64{0, 3, 4096, 1<<32 - 1}},
		{HeaderIndexOffset, 8, []uint64{0, 4096, 8192, 16384, 1<<64 - 4096}},
		{HeaderPolicy, 4, []uint64{1, 4, 9, 1<<32 - 1}}, // 4, clock, has reference bytes
		{HeaderSumsOffset, 8, []uint64{8, 4096, 16384, 1<<64 - 4096}},
		{HeaderReferenceOffset, 8, []uint64{8, 4096, 1<<64 - 4096}},
		{HeaderLengthsOffset, 8, []uint64{8, 4096, 16384, 1<<64 - 4096}},
		{HeaderFlags, 4, []uint64{FlagNamed | FlagLengths}}, // samples of one size are no lists
		{HeaderSlotTableOffset, 8, []uint64{0, 12288, 20480, 1<<64 - 4096}},
		{HeaderPayloadOffset, 8, []uint64{0, 4096, 4 << 20, 1<<64 - 1}},
		{HeaderPayloadBytes, 8, []uint64{0, 64, 96, 1 << 62, 1<<64 - 1}},
		{HeaderSegmentBytes, 8, []uint64{0, 4096, 2097152, 1<<64 - 4096}},
		{HeaderFieldCount, 4, []uint64{0, 1, 3, 25, 1<<32 - 1}},
		{HeaderFields + FieldNDim, 2, []uint64{0, 1, 9, 1<<16 - 1}},
		{HeaderFields + FieldDType, 2, []uint64{4, 16, 1<<16 - 1}},
		{HeaderFields + FieldDims, 8, []uint64{0, 3, 1 << 40, 1<<64 - 1}},
		{HeaderFields + FieldOffset, 8, []uint64{1, 16, 1<<64 - 1}},
		{HeaderFields + FieldSize, 8, []uint64{0, 5, 1<<64 - 1}},
	} {
		for _, v := range c.values {
			page := bytes.Clone(image)
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], v)
			copy(page[c.offset:c.offset+c.width], b[:])
			refix(page)
			if _, g, err := DecodeHeader(page, 2101248); err == nil {
				t.Errorf("%d at byte %d passes: %+v", v, c.offset, g)
			} else {
				expect.Error(t, err, ErrFormat)
			}
		}
	}
}
