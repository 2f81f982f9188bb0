package tar

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// builder collects the members of a shard in their order, and makes the index.
type builder struct {
	stamp                    source.Stamp
	links, ignored, trailing uint64

	starts, sizes []uint32
	places        []uint64
	fields        []string
	numbers       map[string]int // numbers of fields
	names         uint64         // bytes of their names

	keyBlocks []uint64
	keys      []byte
	key       string // key of the current sample
}

func newBuilder(stamp source.Stamp) *builder {
	return &builder{stamp: stamp, numbers: map[string]int{}}
}

// add adds a member whose data lies at a multiple of blockBytes. It returns ErrInvalid for a member
// that cannot be part of a sample.
func (b *builder) add(name string, at, bytes int64) error {
	key, field, ok := splitName(name)
	if !ok || len(field) > 255 {
		b.ignored++
		return nil
	}
	switch {
	case bytes > shm.MaxSampleBytes:
		return fmt.Errorf("%w: member %q has %d bytes; a sample has at most %d", source.ErrInvalid, name, bytes,
			uint64(shm.MaxSampleBytes))
	case len(key) > mostKey:
		return fmt.Errorf("%w: a member has a name of %d bytes", source.ErrInvalid, len(name))
	case len(b.places) == mostMembers:
		return fmt.Errorf("%w: more than %d members; make more shards, of some GB each", source.ErrInvalid,
			uint64(mostMembers))
	}
	number, known := b.numbers[field]
	if !known {
		if number = len(b.fields); number == mostFields {
			return fmt.Errorf("%w: more than %d different fields, the last is %q of sample %q; "+
				"is it one of webdataset's shards?",
				source.ErrInvalid, mostFields, field, key)
		}
		b.numbers[field] = number
		b.fields = append(b.fields, field)
		b.names += 1 + uint64(len(field))
	}
	if len(b.starts) == 0 || key != b.key {
		b.begin(key)
	}
	for _, place := range b.places[b.starts[len(b.starts)-1]:] {
		if int(place&(mostFields-1)) == number {
			return fmt.Errorf("%w: sample %q has the field %q twice, the second time as member %q at %d; "+
				"each name may occur once",
				source.ErrInvalid, key, field, name, at)
		}
	}
	b.places = append(b.places, uint64(at/blockBytes)<<fieldBits|uint64(number))
	b.sizes = append(b.sizes, uint32(bytes))
	return nil
}

// begin begins a sample.
func (b *builder) begin(key string) {
	shared := 0
	if len(b.starts)%keyBlock == 0 {
		b.keyBlocks = append(b.keyBlocks, uint64(len(b.keys)))
	} else {
		for shared < min(len(key), len(b.key)) && key[shared] == b.key[shared] {
			shared++
		}
	}
	b.keys = binary.AppendUvarint(b.keys, uint64(shared))
	b.keys = binary.AppendUvarint(b.keys, uint64(len(key)-shared))
	b.keys = append(b.keys, key[shared:]...)
	b.starts = append(b.starts, uint32(len(b.places)))
	b.key = key
}

// encode returns the index file.
func (b *builder) encode() []byte {
	samples, members := uint64(len(b.starts)), uint64(len(b.places))
	data := make([]byte, headerBytes, headerBytes+roundUp(4*(samples+1), 8)+8*members+roundUp(4*members,
		8)+roundUp(b.names, 8)+8*keyBlocks(samples)+roundUp(uint64(len(b.keys)), 8))
	copy(data, indexMagic)
	binary.LittleEndian.PutUint32(data[8:], indexVersion)
	for at, n := range map[int]uint64{atBytes: uint64(b.stamp.Bytes), atModified: uint64(b.stamp.ModifiedNs),
		atBorn:    uint64(b.stamp.BornNs),
		atSamples: samples, atMembers: members, atFields: uint64(len(b.fields)),
		atFieldBytes: b.names, atKeyBytes: uint64(len(b.keys)), atLinks: b.links,
		atIgnored: b.ignored, atTrailing: b.trailing} {
		binary.LittleEndian.PutUint64(data[at:], n)
	}
	pad := func() { data = append(data, make([]byte, roundUp(uint64(len(data)), 8)-uint64(len(data)))...) }
	for _, start := range b.starts {
		data = binary.LittleEndian.AppendUint32(data, start)
	}
	data = binary.LittleEndian.AppendUint32(data, uint32(members))
	pad()
	for _, place := range b.places {
		data = binary.LittleEndian.AppendUint64(data, place)
	}
	for _, size := range b.sizes {
		data = binary.LittleEndian.AppendUint32(data, size)
	}
	pad()
	for _, name := range b.fields {
		data = append(append(data, byte(len(name))), name...)
	}
	pad()
	for _, at := range b.keyBlocks {
		data = binary.LittleEndian.AppendUint64(data, at)
	}
	data = append(data, b.keys...)
	pad()
	binary.LittleEndian.PutUint32(data[atChecksum:], crc32.Checksum(data[afterChecksum:], shm.Castagnoli))
	return data
}
