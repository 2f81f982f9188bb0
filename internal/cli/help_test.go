package cli

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// Ensure that no line of a help is wider than the terminal, but commands to copy, and that each word
// is there.
func TestHelpFits(t *testing.T) {
	commands := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		commands++
		for _, width := range []int{60, 80, 100} {
			text := c.Long + "\n\n" + c.UsageString()
			got := fitted(text, width)
			expect.Slice(t, strings.Fields(got), strings.Fields(text), "%v, %v", c.CommandPath(), got)
			for line := range strings.Lines(got) {
				line = strings.TrimSuffix(line, "\n")
				command := strings.HasPrefix(strings.TrimSpace(line), "stocached ") ||
					strings.Contains(c.Example, strings.TrimSpace(line))
				if utf8.RuneCountInString(line) > width && !command {
					t.Errorf("%s, %d columns: %s", c.CommandPath(), width, line)
				}
			}
		}
		for _, c := range c.Commands() {
			visit(c)
		}
	}
	visit(newRoot())
	if commands < 20 {
		t.Error(commands)
	}
}

// Ensure that the lines of a table stay one below the other, and that paragraphs are filled.
func TestFitted(t *testing.T) {
	text := "A paragraph\nof two lines.\n\nOUTPUT:\n  name  field  of a cache\n  -     x      one two three four\n" +
		"  command that is longer than a line\n"
	want := "A paragraph of two lines.\n\nOUTPUT:\n  name  field  of a cache\n  -     x      one two\n" +
		"               three four\n  command that is longer than a line\n"
	expect.Equal(t, fitted(text, 26), want, "")
	expect.Equal(t, fitted("A paragraph\nof two lines.\n", 20), "A paragraph of two\nlines.\n", "")
}

// printedOn is what a command prints on a terminal of so many columns.
func printedOn(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	stdout, written := terminal(t)
	fatal.If(t, unix.IoctlSetWinsize(int(stdout.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: columns}))
	fatal.Equal(t, Run(args, stdout, os.Stderr), exitOK, "")
	return strings.ReplaceAll(written(), "\r", "")
}

func widestLine(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return columns
}

// Ensure that --help asks the terminal for its width.
func TestHelpOnATerminal(t *testing.T) {
	for columns, most := range map[uint16]int{60: 60, 90: 90, 200: widestHelp} {
		if widest := widestLine(printedOn(t, columns, "ls", "--help")); widest > most || widest < most-10 {
			t.Errorf("a terminal of %d columns: a line of %d", columns, widest)
		}
	}
}

// Ensure that tables and sentences fit a terminal of 80 columns, and have the words of a pipe's.
func TestTextOnATerminal(t *testing.T) {
	for _, command := range []string{"trace", "advise"} {
		all := ok(t, command, recording)
		if widestLine(all) <= 80 {
			t.Errorf("%s: the test needs lines that do not fit", command)
		}
		got := printedOn(t, 80, command, recording)
		if widest := widestLine(got); widest > 80 {
			t.Errorf("%s: a line of %d\n%s", command, widest, got)
		}
		expect.Slice(t, strings.Fields(got), strings.Fields(all), "%v, %v", command, got)
	}
}
