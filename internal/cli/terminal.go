package cli

import (
	"io"
	"math"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/vbauerster/mpb/v8/cwriter"
	"golang.org/x/sys/unix"
)

// isTerminal says whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && cwriter.IsTerminal(int(f.Fd()))
}

// canRedraw says whether w is a terminal on which a bar or a screen can be drawn again.
func canRedraw(w io.Writer) bool { return isTerminal(w) && !dumb(os.Getenv("TERM")) }

// dumb says whether a terminal cannot move its cursor.
func dumb(term string) bool { return term == "" || term == "dumb" }

// terminalSize returns columns and lines; 80 by 24 if the terminal does not say.
func terminalSize(w io.Writer) (width, height int) {
	width, height, _ = saidSize(w)
	return width, height
}

// saidSize is terminalSize, and says whether the terminal did.
func saidSize(w io.Writer) (width, height int, said bool) {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
			return int(size.Col), int(size.Row), true
		}
	}
	return 80, 24, false
}

// room is the most columns of a line: those of a terminal, or else as many as it needs.
func room(w io.Writer) int {
	if width, _, said := saidSize(w); said {
		return width
	}
	return math.MaxInt
}

// inLines is a text after a first word or sign, in lines that fit a terminal. They begin below each
// other.
func inLines(w io.Writer, first, text string) string {
	return filled(text, first, strings.Repeat(" ", utf8.RuneCountInString(first)), room(w))
}
