package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
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

// Ensure that a terminal that says no size, as under script and in some CI, has a bar that fits into 80 columns;
// and that one that cannot move its cursor has none.
func TestProgressWithoutSize(t *testing.T) {
	for _, size := range []unix.Winsize{{}, {Row: 24}, {Col: 80}} {
		stderr, written := terminal(t)
		if err := unix.IoctlSetWinsize(int(stderr.Fd()), unix.TIOCSWINSZ, &size); err != nil {
			t.Fatal(err)
		}
		p := newProgress(stderr, "half", 1_000_000, false)
		p.set(500_000)
		p.end()
		text := written()
		contains(t, text, "half  [===", "50 %", "500000 / 1000000")
		for line := range strings.Lines(text) {
			line = strings.TrimPrefix(strings.TrimRight(line, "\r\n"), "\x1b[1A\x1b[J")
			if line == "" || utf8.RuneCountInString(line) >= 80 || strings.Contains(line, "\x1b") {
				t.Errorf("%+v: %q", size, line)
			}
		}
	}
	stderr, written := terminal(t)
	t.Setenv("TERM", "dumb")
	p := newProgress(stderr, "half", 10, false)
	p.set(5)
	p.end()
	if text := written(); text != "" {
		t.Errorf("%q", text)
	}
}
