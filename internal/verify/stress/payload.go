package stress

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// HeaderBytes is the least size of a payload.
const HeaderBytes = 32

// Fill writes the payload of a sample into p. The length of p is the length of the sample.
func Fill(p []byte, sample, sequence, writer uint64) {
	le := binary.LittleEndian
	le.PutUint64(p, sample)
	le.PutUint64(p[8:], sequence)
	le.PutUint64(p[16:], writer)
	state := check(sample, sequence, writer, len(p))
	le.PutUint64(p[24:], state)
	rest := p[HeaderBytes:]
	for ; len(rest) >= 8; rest = rest[8:] {
		state += golden
		le.PutUint64(rest, mix(state))
	}
	if len(rest) > 0 {
		var last [8]byte
		le.PutUint64(last[:], mix(state+golden))
		copy(rest, last[:])
	}
}

// Verify returns what is wrong with the payload of a sample; nil if every byte is right.
func Verify(p []byte, sample uint64) error {
	if len(p) < HeaderBytes {
		return fmt.Errorf("sample %d has %d bytes, fewer than %d", sample, len(p), HeaderBytes)
	}
	le := binary.LittleEndian
	is, sequence, writer := le.Uint64(p), le.Uint64(p[8:]), le.Uint64(p[16:])
	if is != sample {
		return fmt.Errorf("sample %d holds sample %d (sequence %d of writer %d)", sample, is, sequence, writer)
	}
	state := check(sample, sequence, writer, len(p))
	if got := le.Uint64(p[24:]); got != state {
		return fmt.Errorf("sample %d (sequence %d of writer %d, %d bytes) has check %#x, want %#x", sample, sequence,
			writer, len(p), got, state)
	}
	at := HeaderBytes
	for ; at+8 <= len(p); at += 8 {
		state += golden
		if got, want := le.Uint64(p[at:]), mix(state); got != want {
			return fmt.Errorf("sample %d (sequence %d of writer %d, %d bytes) has word %#x at %d, want %#x", sample,
				sequence, writer, len(p), got, at, want)
		}
	}
	for last := mix(state + golden); at < len(p); at, last = at+1, last>>8 {
		if p[at] != byte(last) {
			return fmt.Errorf("sample %d (sequence %d of writer %d, %d bytes) has byte %#x at %d, want %#x", sample,
				sequence, writer, len(p), p[at], at, byte(last))
		}
	}
	return nil
}

const golden = 0x9e3779b97f4a7c15

func check(sample, sequence, writer uint64, length int) uint64 {
	return mix((sample ^ bits.RotateLeft64(sequence, 21) ^ bits.RotateLeft64(writer, 42) ^ uint64(length)) + golden)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
