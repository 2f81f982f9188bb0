package cli

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/vbauerster/mpb/v8/cwriter"

	"github.com/stocached/stocached/internal/cli/table"
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
	width, height, _ = table.TerminalSize(w)
	return width, height
}

// inLines is a text after a first word or sign. On a terminal it breaks the text into lines that fit,
// the others below the first one.
func inLines(w io.Writer, first, text string) string {
	if width, _, said := table.TerminalSize(w); said {
		return filled(text, first, strings.Repeat(" ", utf8.RuneCountInString(first)), width)
	}
	return first + text + "\n"
}
