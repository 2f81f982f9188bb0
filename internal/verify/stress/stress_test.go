package stress

import (
	"encoding/hex"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// The test vector for workers in other languages.
func TestVector(t *testing.T) {
	p := make([]byte, 45)
	Fill(p, 5, 7, 1234)
	const want = "05000000000000000700000000000000d20400000000000000b77615df6feacff6bb854794aefff9898ee19516"
	expect.Equal(t, hex.EncodeToString(p), want, "payload")
}

// A payload verifies. It does not verify with any byte changed, cut to any other length, or as
// another sample.
func TestVerify(t *testing.T) {
	p := make([]byte, 77)
	Fill(p, 3, 1, 99)
	fatal.If(t, Verify(p, 3))
	for k := range p {
		p[k] ^= 0x10
		if Verify(p, 3) == nil {
			t.Errorf("byte %d may be anything", k)
		}
		p[k] ^= 0x10
	}
	for n := range p {
		if Verify(p[:n], 3) == nil {
			t.Errorf("may be cut to %d bytes", n)
		}
	}
	if Verify(p, 4) == nil {
		t.Error("may be another sample's")
	}
}
