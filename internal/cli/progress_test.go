package cli

import (
	"bytes"
	"testing"
)

// Ensure that a bar can end half-way, and that other outputs than terminals get none.
func TestProgress(t *testing.T) {
	stderr, written := terminal(t)
	p := newProgress(stderr, "half", 10, false)
	p.set(5)
	p.end()
	contains(t, written(), "half", "50 %", "5 / 10")
	var b bytes.Buffer
	p = newProgress(&b, "none", 10, true)
	p.set(5)
	p.end()
	if b.Len() != 0 {
		t.Errorf("%q", b.String())
	}
}
