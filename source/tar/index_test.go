package tar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

var testStamp = source.Stamp{Bytes: 1 << 40, ModifiedNs: 12345}

// built returns an index of samples with the fields jpg and cls, and of one with another field.
func built(t testing.TB, samples int) ([]byte, []string) {
	t.Helper()
	b, keys := newBuilder(testStamp), []string{}
	for i := range samples {
		key := fmt.Sprintf("train/%s%06d", strings.Repeat("x", i%300), i)
		keys = append(keys, key)
		for field, name := range []string{"jpg", "cls", "deep.name"} {
			if field == 2 && i%5 != 3 {
				continue
			}
			fatal.If(t, b.add(key+"."+name, int64(i*4+field)*blockBytes, int64(i*10+field)))
		}
	}
	b.links, b.ignored, b.trailing = 3, 4, 5
	return b.encode(), keys
}

// signed corrects the checksum of a changed index, so that the code after its check is tested.
func signed(data []byte) []byte {
	if len(data) >= headerBytes {
		binary.LittleEndian.PutUint32(data[atChecksum:], crc32.Checksum(data[afterChecksum:], shm.Castagnoli))
	}
	return data
}

func TestIndexKeepsAll(t *testing.T) {
	for _, samples := range []int{0, 1, 63, 64, 65, 1000} {
		data, keys := built(t, samples)
		x := fatal.Value(decodeIndex(data, testStamp))(t)
		if x.samples != samples || x.links != 3 || x.ignored != 4 || x.trailing != 5 || x.stamp != testStamp {
			t.Fatalf("%+v", x)
		}
		for i, key := range keys {
			fatal.Equal(t, x.key(i), key, "key of sample %d", i)
			for k := x.start(i); k < x.start(i+1); k++ {
				field := k - x.start(i)
				if m := x.member(k); x.fields[m.field] != []string{"jpg", "cls", "deep.name"}[field] ||
					m.at != int64(i*4+field)*blockBytes || m.bytes != i*10+field {
					t.Fatalf("sample %d: %+v", i, m)
				}
			}
			if fields := x.start(i+1) - x.start(i); fields != 2 && i%5 != 3 || fields != 3 && i%5 == 3 {
				t.Fatalf("sample %d has %d fields", i, fields)
			}
		}
	}
}

// Ensure that each change of an index is detected: one byte anywhere, a cut anywhere, bytes after
// the end.
func TestIndexDamage(t *testing.T) {
	data, _ := built(t, 100)
	for at := range data {
		changed := bytes.Clone(data)
		changed[at] ^= 0x10
		if _, err := decodeIndex(changed, testStamp); !errors.Is(err, source.ErrCorrupt) && !errors.Is(err, errStale) {
			t.Fatalf("byte %d changed: %v", at, err)
		}
		if _, err := decodeIndex(data[:at], testStamp); !errors.Is(err, source.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", at, err)
		}
	}
	expect.Fails(decodeIndex(append(bytes.Clone(data), 0, 0, 0, 0, 0, 0, 0, 0), testStamp))(t, source.ErrCorrupt)
	for _, stamp := range []source.Stamp{{Bytes: testStamp.Bytes + 1, ModifiedNs: testStamp.ModifiedNs},
		{Bytes: testStamp.Bytes, ModifiedNs: testStamp.ModifiedNs - 1}} {
		if _, err := decodeIndex(data, stamp); !errors.Is(err, errStale) {
			t.Errorf("%+v: %v", stamp, err)
		}
	}
}

// Ensure that an index with wrong values and a correct checksum is refused.
func TestIndexThatLies(t *testing.T) {
	const samples = 10
	data, _ := built(t, samples)
	members := binary.LittleEndian.Uint64(data[atMembers:])
	places := headerBytes + roundUp(4*(samples+1), 8)
	sizes := places + 8*members
	names := sizes + roundUp(4*members, 8)
	put32 := binary.LittleEndian.PutUint32
	put64 := binary.LittleEndian.PutUint64
	for name, change := range map[string]func(d []byte){
		"more samples":          func(d []byte) { put64(d[atSamples:], samples+1) },
		"samples without end":   func(d []byte) { put64(d[atSamples:], 1<<63) },
		"fewer members":         func(d []byte) { put64(d[atMembers:], members-1) },
		"members without end":   func(d []byte) { put64(d[atMembers:], 1<<61) },
		"fields without end":    func(d []byte) { put64(d[atFields:], 1<<60) },
		"more fields":           func(d []byte) { put64(d[atFields:], 4) },
		"names without end":     func(d []byte) { put64(d[atFieldBytes:], 1<<63+5) },
		"keys without end":      func(d []byte) { put64(d[atKeyBytes:], ^uint64(0)) },
		"does not begin at 0":   func(d []byte) { put32(d[headerBytes:], 1) },
		"an empty sample":       func(d []byte) { put32(d[headerBytes+4:], 0) },
		"a start after all":     func(d []byte) { put32(d[headerBytes+4:], 1<<31) },
		"another end":           func(d []byte) { put32(d[headerBytes+4*samples:], uint32(members+1)) },
		"a field that is none":  func(d []byte) { put64(d[places:], 3) },
		"data after the shard":  func(d []byte) { put64(d[places:], (1<<40/blockBytes+1)<<fieldBits) },
		"data over its end":     func(d []byte) { put64(d[places:], (1<<40/blockBytes)<<fieldBits); put32(d[sizes:], 1) },
		"a name over its end":   func(d []byte) { d[names] = 200 },
		"keys begin after them": func(d []byte) { put64(d[names+roundUp(uint64(3+3+1+1+9+1), 8):], 1<<40) },
	} {
		changed := bytes.Clone(data)
		change(changed)
		if _, err := decodeIndex(signed(changed), testStamp); !errors.Is(err, source.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Keys are only read for messages, and not checked when an index is opened: a broken key reads
	// as "".
	keys := bytes.Clone(data)
	for k := range 30 {
		keys[len(keys)-1-k] = 0xFF
	}
	x := fatal.Value(decodeIndex(signed(keys), testStamp))(t)
	expect.Equal(t, x.key(9), "", "")
}

// Ensure that no method panics on an index that decodeIndex accepts.
func FuzzDecodeIndex(f *testing.F) {
	for _, samples := range []int{0, 1, 3, 70} {
		data, _ := built(f, samples)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		if len(data) >= headerBytes { // otherwise no input would pass the magic and the checksum
			copy(data, indexMagic)
			binary.LittleEndian.PutUint32(data[8:], indexVersion)
			binary.LittleEndian.PutUint64(data[atBytes:], uint64(testStamp.Bytes))
			binary.LittleEndian.PutUint64(data[atModified:], uint64(testStamp.ModifiedNs))
		}
		x, err := decodeIndex(signed(data), testStamp)
		if err != nil {
			if !errors.Is(err, source.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		for i := range x.samples {
			if x.start(i+1) <= x.start(i) || len(x.fieldsOf(i)) == 0 {
				t.Fatalf("sample %d has no members", i)
			}
			x.key(i)
		}
		for k := range x.members {
			if m := x.member(k); m.at < 0 || m.at+int64(m.bytes) > testStamp.Bytes || x.fields[m.field] == "\x00never" {
				t.Fatalf("%+v", m)
			}
		}
		s := &shard{path: "x", index: x}
		fatal.Value(choose(s, []field{{name: "jpg", names: []string{"jpg", "cls"}}}, false, true, false))(t)
	})
}
