package cli

import (
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// Ensure that commands that take long have a bar on a terminal, and that other outputs get none.
func TestProgress(t *testing.T) {
	dir, path := newCache(t, small())
	records, flags := rawSource(t, 100)
	d := newServedCaches(t, warmRecords(t, 30), warmCache("pets", "", ""))
	for _, c := range []struct {
		args  []string
		texts []string
	}{
		{args("verify", path), []string{"verify", "100 %", "10 / 10"}},
		{args("create", "a", "--dir", dir, "--samples", "10", "--sample-bytes", "1MiB", "--reserve"),
			[]string{"reserve", "100 %", "10.0 MiB / 10.0 MiB"}},
		{args("pack", records, t.TempDir()+"/out", flags, "--verify"),
			[]string{"pack", "verify", "100 %", "100 / 100", "iB/s"}},
		{args("warm", "pets", "--sockets", d.sockets), []string{"warm", "100 %", "30 / 30", "iB/s"}},
	} {
		stderr, written := terminal(t)
		expect.Equal(t, Run(c.args, io.Discard, stderr), exitOK, "%q", c.args)
		contains(t, written(), c.texts...)
	}
	if _, _, stderr := cli(t, "verify", path); stderr != "" {
		t.Errorf("%q", stderr)
	}
}

// Ensure that a terminal that says no size, as under script and in some CI, has a bar that fits into 80 columns;
// and that one that cannot move its cursor has none.
func TestProgressWithoutSize(t *testing.T) {
	for _, size := range []unix.Winsize{{}, {Row: 24}, {Col: 80}} {
		stderr, written := terminal(t)
		fatal.If(t, unix.IoctlSetWinsize(int(stderr.Fd()), unix.TIOCSWINSZ, &size))
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
	expect.Equal(t, written(), "", "")
}
