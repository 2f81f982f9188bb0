package tar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// An index file says where the samples of one shard lie. It is little-endian. Each section begins
// at a multiple of 8; zeros fill the gaps.
//
//	 0  magic, 8 bytes "stoc-tar"
//	 8  version, uint32: 2
//	12  CRC-32C of all that follows, uint32
//	16  bytes of the shard, int64
//	24  modification time of the shard, nanoseconds since 1970, int64; for an object a number made of its tag
//	32  samples, uint64
//	40  members of samples, uint64
//	48  fields, uint64: number of different fields of the members
//	56  bytes of the names of fields, uint64
//	64  bytes of the keys, uint64
//	72  links that were skipped, uint64
//	80  members that are no part of a sample, uint64
//	88  bytes after the end of the archive, uint64; 0 when they are zeros
//	96  time when the shard was created, nanoseconds since 1970, int64; 0 for an object, or where it is unknown
//	104 starts, uint32 x (samples + 1): the members of sample i are starts[i]..starts[i+1]-1
//	    places, uint64 x members: block of 512 bytes at which the data begins << 16 | number of the field
//	    sizes, uint32 x members: bytes of data
//	    names of the fields: each its length, 1 byte, and its text
//	    key blocks, uint64 x ceil(samples / 64): where the keys of samples 64 b..64 b + 63 begin
//	    keys: for each sample, as unsigned varints, how many bytes it shares with the previous key
//	          (0 for the first of a block), and how many follow; then these bytes
//
// The index is read in place, in a mapping, so that 10 million samples need no objects. Any change
// of the format needs a new version.
const (
	indexMagic   = "stoc-tar"
	indexVersion = 2
	headerBytes  = 104

	blockBytes  = 512 // block of a tar archive: members begin at multiples of this
	fieldBits   = 16
	mostFields  = 1 << fieldBits
	mostMembers = math.MaxUint32
	keyBlock    = 64
	mostKey     = 1 << 20 // bytes of a key; archive/tar refuses longer names

	atChecksum, atBytes, atModified, atSamples, atMembers, atFields  = 12, 16, 24, 32, 40, 48
	atFieldBytes, atKeyBytes, atLinks, atIgnored, atTrailing, atBorn = 56, 64, 72, 80, 88, 96

	afterChecksum = 16
)

// errStale: the index has another version, or belongs to another state of its shard.
var errStale = errors.New("the index is of another version or shard")

// index is an index file in memory: sections of one slice, which may be mapped. It is immutable.
// After decodeIndex has checked it, no method panics, unless a process truncates the mapped file
// (kept.look).
type index struct {
	samples, members int
	stamp            source.Stamp
	links, ignored   uint64
	trailing         uint64
	fields           []string // the number of a field is its position

	starts, places, sizes, keyBlocks, keys []byte
}

// member is the data of one field of one sample.
type member struct {
	field int
	at    int64 // in the shard
	bytes int
}

func (x *index) start(i int) int { return int(binary.LittleEndian.Uint32(x.starts[4*i:])) }

func (x *index) member(m int) member {
	place := binary.LittleEndian.Uint64(x.places[8*m:])
	return member{int(place & (mostFields - 1)), int64(place>>fieldBits) * blockBytes,
		int(binary.LittleEndian.Uint32(x.sizes[4*m:]))}
}

// key returns the key of sample i.
func (x *index) key(i int) string {
	k := keyReader{rest: x.keys[binary.LittleEndian.Uint64(x.keyBlocks[8*(i/keyBlock):]):]}
	for range i%keyBlock + 1 {
		if !k.next() {
			return ""
		}
	}
	return string(k.key)
}

// keyReader reads the keys of a block one after the other.
type keyReader struct{ rest, key []byte }

// next reads the next key. It returns false for invalid bytes.
func (k *keyReader) next() bool {
	shared, ok := k.varint()
	if !ok || shared > uint64(len(k.key)) {
		return false
	}
	own, ok := k.varint()
	if !ok || own > uint64(len(k.rest)) || shared+own > mostKey {
		return false
	}
	k.key = append(k.key[:shared], k.rest[:own]...)
	k.rest = k.rest[own:]
	return true
}

func (k *keyReader) varint() (uint64, bool) {
	n, bytes := binary.Uvarint(k.rest)
	if bytes <= 0 {
		return 0, false
	}
	k.rest = k.rest[bytes:]
	return n, true
}

// decodeIndex checks and decodes an index file. The result points into data. Errors: errStale for
// another version or another stamp of the shard, ErrCorrupt for an invalid index.
func decodeIndex(data []byte, stamp source.Stamp) (*index, error) {
	if len(data) < headerBytes || string(data[:len(indexMagic)]) != indexMagic {
		return nil, fmt.Errorf("%w: not an index of a tar shard", source.ErrCorrupt)
	}
	number := func(at int) uint64 { return binary.LittleEndian.Uint64(data[at:]) }
	if v := binary.LittleEndian.Uint32(data[8:]); v != indexVersion {
		return nil, fmt.Errorf("%w: version %d, this program writes %d", errStale, v, indexVersion)
	}
	x := &index{stamp: source.Stamp{Bytes: int64(number(atBytes)), ModifiedNs: int64(number(atModified)),
		BornNs: int64(number(atBorn))},
		links: number(atLinks), ignored: number(atIgnored),
		trailing: number(atTrailing)}
	if x.stamp != stamp {
		return nil, fmt.Errorf("%w: the shard had %d bytes and the times %d and %d ns, and now has %d bytes and the times %d and %d ns",
			errStale, x.stamp.Bytes, x.stamp.ModifiedNs, x.stamp.BornNs, stamp.Bytes, stamp.ModifiedNs, stamp.BornNs)
	}
	if expected, got := binary.LittleEndian.Uint32(data[atChecksum:]), crc32.Checksum(data[afterChecksum:],
		shm.Castagnoli); expected != got {
		return nil, fmt.Errorf("%w: checksum %08x, expected %08x", source.ErrCorrupt, got, expected)
	}
	return x, x.sections(data, number(atSamples), number(atMembers), number(atFields), number(atFieldBytes),
		number(atKeyBytes))
}

// sections finds the sections, and checks that no record leads outside of them or of the shard.
func (x *index) sections(data []byte, samples, members, fields, fieldBytes, keyBytes uint64) error {
	most := uint64(len(data)) // each item takes at least a byte, so no product below overflows
	if samples > most || members > most || members > mostMembers || samples > members || fields > mostFields ||
		fieldBytes > most || keyBytes > most {
		return fmt.Errorf("%w: %d samples of %d members and %d fields do not fit in an index of %d bytes",
			source.ErrCorrupt, samples, members, fields, most)
	}
	x.samples, x.members = int(samples), int(members)
	rest, ok := data[headerBytes:], true
	section := func(bytes uint64) []byte {
		padded := roundUp(bytes, 8)
		if ok = ok && padded <= uint64(len(rest)); !ok {
			return nil
		}
		part := rest[:bytes:bytes]
		rest = rest[padded:]
		return part
	}
	x.starts, x.places, x.sizes = section(4*(samples+1)), section(8*members), section(4*members)
	names := section(fieldBytes)
	x.keyBlocks, x.keys = section(8*keyBlocks(samples)), section(keyBytes)
	if !ok || len(rest) != 0 {
		return fmt.Errorf("%w: an index of %d bytes does not fit %d samples of %d members", source.ErrCorrupt,
			most, samples, members)
	}
	for len(names) > 0 && len(names) > int(names[0]) {
		x.fields = append(x.fields, string(names[1:1+int(names[0])]))
		names = names[1+int(names[0]):]
	}
	if len(names) != 0 || len(x.fields) != int(fields) {
		return fmt.Errorf("%w: the names of %d fields", source.ErrCorrupt, fields)
	}
	return x.check()
}

// check checks all records.
func (x *index) check() error {
	before := 0
	for i := range x.samples + 1 {
		start := x.start(i)
		if i == 0 && start != 0 || i > 0 && start <= before || start > x.members || i == x.samples && start != x.members {
			return fmt.Errorf("%w: the members of sample %d begin at %d of %d", source.ErrCorrupt, i, start, x.members)
		}
		before = start
	}
	fields, bytes := len(x.fields), x.stamp.Bytes
	for k := range x.members {
		if m := x.member(k); m.field >= fields || m.at > bytes || int64(m.bytes) > bytes-m.at {
			return fmt.Errorf("%w: member %d of field %d has %d bytes at %d of a shard of %d",
				source.ErrCorrupt, k, m.field, m.bytes, m.at, x.stamp.Bytes)
		}
	}
	for b := range keyBlocks(uint64(x.samples)) {
		if at := binary.LittleEndian.Uint64(x.keyBlocks[8*b:]); at > uint64(len(x.keys)) {
			return fmt.Errorf("%w: keys begin at %d of %d", source.ErrCorrupt, at, len(x.keys))
		}
	}
	return nil
}

func keyBlocks(samples uint64) uint64 { return (samples + keyBlock - 1) / keyBlock }

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }
