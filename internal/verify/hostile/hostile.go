// Package hostile changes the frames of docs/spec/control.md, for tests of the side that receives them.
package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
)

// All asks for all values of each byte. Otherwise each run tries one of about five.
var All = os.Getenv("STOCACHED_TEST_HOSTILE") == "all"

// Sweep tries changed frames of one side.
type Sweep struct {
	*rand.Rand
	// Numbers are put over each number of a body, beside 0 and all ones.
	Numbers []uint64

	swept map[control.Type]bool
}

// New begins a sweep. The log of the test has its seed.
func New(t testing.TB) *Sweep {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return &Sweep{Rand: rand.New(rand.NewPCG(seed, 0)), swept: map[control.Type]bool{}}
}

// Frames changes each byte of frames that are sent together, each number of their bodies, the length of the last body, and
// where all ends. cut: try gets only the first bytes, perhaps none.
func (s *Sweep) Frames(frames []byte, try func(what string, changed []byte, cut bool)) {
	name, last := "", 0
	for at := 0; at < len(frames); {
		t := control.Type(binary.LittleEndian.Uint16(frames[at+4:]))
		s.swept[t] = true
		name += t.String() + ": "
		last = at
		at += control.HeaderBytes + int(binary.LittleEndian.Uint32(frames[at:]))
	}
	for at, b := range frames {
		values := []byte{0, 0xff, 0x80, b + 1, b ^ 1<<s.IntN(8), byte(s.Uint32())}
		if !All {
			values = values[s.IntN(len(values)):][:1]
		}
		for _, v := range values {
			changed := bytes.Clone(frames)
			changed[at] = v
			try(fmt.Sprintf("%sbyte %d is %#x", name, at, v), changed, false)
		}
		if All || s.IntN(4) == 0 {
			try(fmt.Sprintf("%scut at %d", name, at), frames[:at], true)
		}
	}
	for n := range len(frames) - last - control.HeaderBytes {
		if All || n < 2*control.HeaderBytes || s.IntN(4) == 0 {
			changed := bytes.Clone(frames[:last+control.HeaderBytes+n])
			binary.LittleEndian.PutUint32(changed[last:], uint32(n))
			try(fmt.Sprintf("%sa body of %d bytes", name, n), changed, false)
		}
	}
	for at := control.HeaderBytes; at+8 <= len(frames); at += 4 {
		for _, v := range append([]uint64{0, 1<<64 - 1}, s.Numbers...) {
			changed := bytes.Clone(frames)
			binary.LittleEndian.PutUint64(changed[at:], v)
			try(fmt.Sprintf("%snumber %d is %#x", name, at, v), changed, false)
		}
	}
}

// WantAll checks that the sweep had each type of frame that this side sends.
func (s *Sweep) WantAll(t testing.TB, fromClient bool) {
	t.Helper()
	for k := control.Type(1); ; k++ {
		var header [control.HeaderBytes]byte
		binary.LittleEndian.PutUint16(header[4:], uint16(k))
		if _, err := control.ParseHeader(header, k.FromClient()); err != nil {
			return // no such type
		}
		if k.FromClient() == fromClient && !s.swept[k] {
			t.Errorf("no %v was changed", k)
		}
	}
}
