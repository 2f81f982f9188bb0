package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
	"unicode/utf8"
)

// Header holds the fields of a segment's first page that are not geometry. They never change after
// the segment has its name.
type Header struct {
	Version     uint32 // version of the layout
	UUID        [16]byte
	Created     time.Time
	UID         uint32 // effective user id of the creator in its own namespace; only for display
	Flags       uint32
	SampleBytes uint64 // fixed: bytes of a sample. Variable: the largest that the cache accepts
	Limit       uint64 // bytes that the creator allowed; 0: no limit
	Fingerprint string
	Name        string // "" for a memfd
	// Decode says how clients make pictures of the files in the first field (docs/spec/stores.md). "": samples are
	// as they lie.
	Decode string
	Fields []Field
}

// Encode returns the header page of a segment.
func (h *Header) Encode(g *Geometry) []byte {
	b := make([]byte, HeaderBytes)
	le := binary.LittleEndian
	copy(b[HeaderMagic:], Magic)
	le.PutUint32(b[HeaderVersion:], h.Version)
	le.PutUint32(b[HeaderSignature:], Signature())
	le.PutUint32(b[HeaderEndianMark:], EndianMark)
	le.PutUint64(b[HeaderSegmentBytes:], g.SegmentBytes)
	copy(b[HeaderUUID:], h.UUID[:])
	le.PutUint64(b[HeaderCreated:], uint64(h.Created.UnixNano()))
	le.PutUint32(b[HeaderUID:], h.UID)
	le.PutUint32(b[HeaderFlags:], h.Flags)
	le.PutUint64(b[HeaderSamples:], g.Samples)
	le.PutUint64(b[HeaderSlots:], g.Slots)
	le.PutUint64(b[HeaderSampleBytes:], h.SampleBytes)
	le.PutUint64(b[HeaderSlotStride:], g.SlotStride)
	le.PutUint32(b[HeaderClientRecords:], g.ClientRecords)
	le.PutUint32(b[HeaderPolicy:], uint32(g.Policy))
	le.PutUint64(b[HeaderIndexOffset:], g.IndexOffset)
	le.PutUint64(b[HeaderSlotTableOffset:], g.SlotTableOffset)
	le.PutUint64(b[HeaderPayloadOffset:], g.PayloadOffset)
	le.PutUint64(b[HeaderPayloadBytes:], g.PayloadBytes)
	le.PutUint32(b[HeaderFieldCount:], uint32(len(h.Fields)))
	le.PutUint64(b[HeaderLimitBytes:], h.Limit)
	le.PutUint64(b[HeaderSumsOffset:], g.SumsOffset)
	le.PutUint64(b[HeaderReferenceOffset:], g.ReferenceOffset)
	le.PutUint64(b[HeaderGroupsOffset:], g.GroupsOffset)
	le.PutUint64(b[HeaderLengthsOffset:], g.LengthsOffset)
	copy(b[HeaderFingerprint:HeaderFingerprint+FingerprintBytes], h.Fingerprint)
	copy(b[HeaderName:HeaderName+NameBytes], h.Name)
	copy(b[HeaderDecode:HeaderDecode+DecodeBytes], h.Decode)
	for k := range h.Fields {
		h.Fields[k].encode(b[HeaderFields+k*FieldBytes:])
	}
	le.PutUint32(b[HeaderCRC:], headerCRC(b))
	return b
}

// headerCRC is the CRC-32C of a header page, with zeros in place of the CRC itself.
func headerCRC(b []byte) uint32 {
	crc := crc32.Update(0, Castagnoli, b[:HeaderCRC])
	crc = crc32.Update(crc, Castagnoli, make([]byte, 4))
	return crc32.Update(crc, Castagnoli, b[HeaderCRC+4:HeaderBytes])
}

// DecodeHeader checks and decodes the first page of a file of fileBytes. It MUST run before any
// other access: a header that passes cannot lead outside the file. It checks in this order:
// ErrFormat (no segment), ErrVersion (major version, byte order, signature of sizes), ErrFormat
// (checksum, and each field must have exactly the value that we would write).
func DecodeHeader(b []byte, fileBytes uint64) (Header, Geometry, error) {
	if uint64(len(b)) < HeaderBytes || fileBytes < HeaderBytes {
		return Header{}, Geometry{}, fail(ErrFormat, "%d bytes, a header has %d", min(uint64(len(b)), fileBytes), HeaderBytes)
	}
	b = b[:HeaderBytes]
	le := binary.LittleEndian
	if !bytes.Equal(b[:len(Magic)], []byte(Magic)) {
		return Header{}, Geometry{}, fail(ErrFormat, "it begins with %q, a segment with %q", b[:len(Magic)], Magic)
	}
	h := Header{Version: le.Uint32(b[HeaderVersion:])}
	if mark := le.Uint32(b[HeaderEndianMark:]); mark != EndianMark {
		return h, Geometry{}, fail(ErrVersion, "byte order mark %#x, ours %#x; create it again", mark, uint32(EndianMark))
	}
	if h.Version != LayoutVersion {
		return h, Geometry{}, fail(ErrVersion,
			"layout %d, this build reads %d; use the same version everywhere, or create it again", h.Version, LayoutVersion)
	}
	if signature := le.Uint32(b[HeaderSignature:]); signature != Signature() {
		return h, Geometry{}, fail(ErrVersion,
			"signature of sizes %#x, ours %#x; use builds of the same version, or create it again", signature, Signature())
	}
	if crc := headerCRC(b); crc != le.Uint32(b[HeaderCRC:]) {
		return h, Geometry{}, fail(ErrFormat,
			"checksum of the header is %#x, it says %#x; remove it and create it again", crc, le.Uint32(b[HeaderCRC:]))
	}
	h.Created = time.Unix(0, int64(le.Uint64(b[HeaderCreated:])))
	h.UID = le.Uint32(b[HeaderUID:])
	h.Flags = le.Uint32(b[HeaderFlags:])
	h.SampleBytes = le.Uint64(b[HeaderSampleBytes:])
	h.Limit = le.Uint64(b[HeaderLimitBytes:])
	h.Fingerprint = text(b[HeaderFingerprint : HeaderFingerprint+FingerprintBytes])
	h.Name = text(b[HeaderName : HeaderName+NameBytes])
	h.Decode = text(b[HeaderDecode : HeaderDecode+DecodeBytes])
	copy(h.UUID[:], b[HeaderUUID:])
	g, err := h.decodeRest(b)
	if err != nil {
		return h, g, fail(ErrFormat, "%v; remove it and create it again", err)
	}
	if g.SegmentBytes != fileBytes {
		return h, g, fail(ErrFormat,
			"the file has %d bytes, its header says %d: it was truncated or extended; remove it and create it again",
			fileBytes, g.SegmentBytes)
	}
	return h, g, nil
}

// decodeRest decodes and checks the fields and the geometry.
func (h *Header) decodeRest(b []byte) (Geometry, error) {
	le := binary.LittleEndian
	if unknown := h.Flags &^ uint32(FlagsKnown); unknown != 0 {
		return Geometry{}, fmt.Errorf("unknown flags %#x", unknown)
	}
	variable := h.Flags&FlagVariable != 0
	if named := h.Flags&FlagNamed != 0; named && CheckName(h.Name) != nil || !named && h.Name != "" || !named &&
		h.Flags&FlagUnlinkLast != 0 {
		return Geometry{}, fmt.Errorf("flags %#x with the name %q", h.Flags, h.Name)
	}
	if !utf8.ValidString(h.Fingerprint) {
		return Geometry{}, fmt.Errorf("fingerprint %q is not UTF-8", h.Fingerprint)
	}
	if !utf8.ValidString(h.Decode) {
		return Geometry{}, fmt.Errorf("decode %q is not UTF-8", h.Decode)
	}
	count := le.Uint32(b[HeaderFieldCount:])
	if count < 1 || count > MaxFields {
		return Geometry{}, fmt.Errorf("%d fields are not in 1..%d", count, MaxFields)
	}
	for k := range int(count) {
		f, err := decodeField(b[HeaderFields+k*FieldBytes:][:FieldBytes])
		if err != nil {
			return Geometry{}, err
		}
		h.Fields = append(h.Fields, f)
	}
	sampleBytes, stride, err := layOut(h.Fields, variable)
	if err != nil {
		return Geometry{}, err
	}
	if variable {
		if least := max(sampleBytes, 1); h.SampleBytes < least || h.SampleBytes > MaxSampleBytes {
			return Geometry{}, fmt.Errorf("sample bytes %d are not in %d..%d", h.SampleBytes, least, uint64(MaxSampleBytes))
		}
		sampleBytes, stride = h.SampleBytes, UnitBytes
		if Policy(le.Uint32(b[HeaderPolicy:])).Evicts() {
			stride = le.Uint64(b[HeaderSlotStride:])
		}
	}
	if sampleBytes != h.SampleBytes {
		return Geometry{}, fmt.Errorf("sample bytes %d, the fields make %d", h.SampleBytes, sampleBytes)
	}
	g, err := NewGeometry(h.Flags, Policy(le.Uint32(b[HeaderPolicy:])), le.Uint64(b[HeaderSamples:]),
		le.Uint64(b[HeaderSlots:]), stride, le.Uint32(b[HeaderClientRecords:]), le.Uint64(b[HeaderPayloadBytes:]))
	if err != nil {
		return g, err
	}
	return g, h.compare(&g, b)
}

// compare encodes the decoded header again and compares all bytes, reserved ones and padding
// included.
func (h *Header) compare(g *Geometry, b []byte) error {
	want := h.Encode(g)
	for k := range want {
		if want[k] == b[k] || k >= HeaderCRC && k < HeaderCRC+4 {
			continue
		}
		return fmt.Errorf("byte %d of the header is %#x, by the rest of it %#x", k, b[k], want[k])
	}
	return nil
}
