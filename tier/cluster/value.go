package cluster

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strconv"
)

// trailer is how many bytes of a value follow the sample.
const trailer = 24

// layout is the number of the layout of values.
const layout = 0x31435453

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keys makes the keys of one dataset. docs/spec/tiers.md describes them.
type keys struct {
	prefix string
	seed   uint32 // seed of checksums: the checksum of the digits of the dataset
}

func keysOf(fingerprint string) keys {
	sum := sha256.Sum256([]byte(fingerprint))
	digits := hex.EncodeToString(sum[:16])
	return keys{"stoc1:{" + digits + ":", crc32.Checksum([]byte(digits), castagnoli)}
}

// sample returns the key of a sample; lease that of its lease.
func (k keys) sample(i int) string { return k.prefix + strconv.Itoa(i) + "}" }
func (k keys) lease(i int) string  { return k.sample(i) + ":lease" }
func cacheKey(cache string) string { return "stoc1:{cache:" + cache + "}" }

// seal appends the trailer to a sample.
func (k keys) seal(i int, sample []byte) []byte {
	n := uint64(len(sample))
	sample = binary.LittleEndian.AppendUint64(sample, uint64(i))
	sample = binary.LittleEndian.AppendUint64(sample, n)
	sample = binary.LittleEndian.AppendUint32(sample, layout)
	return binary.LittleEndian.AppendUint32(sample, crc32.Update(k.seed, castagnoli, sample))
}

// intact says whether a value is sample i of n bytes.
func (k keys) intact(i, n int, value []byte) bool {
	if len(value) != n+trailer {
		return false
	}
	t := value[n:]
	return binary.LittleEndian.Uint64(t) == uint64(i) && binary.LittleEndian.Uint64(t[8:]) == uint64(n) &&
		binary.LittleEndian.Uint32(t[16:]) == layout &&
		binary.LittleEndian.Uint32(t[20:]) == crc32.Update(k.seed, castagnoli, value[:n+trailer-4])
}
