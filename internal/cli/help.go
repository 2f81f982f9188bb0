package cli

import (
	"cmp"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// widestHelp is the most columns of a help text: longer lines are hard to read.
const widestHelp = 100

// fitHelp makes --help of all commands fit the terminal.
func fitHelp(root *cobra.Command) {
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		out := c.OutOrStdout()
		width, _ := terminalSize(out)
		width = min(width, widestHelp)
		about := strings.TrimSpace(cmp.Or(c.Long, c.Short))
		_, _ = io.WriteString(out, fitted(about, width)+"\n"+fitted(c.UsageString(), width))
	})
}

// cells are those of a line of a table, but the last one, which is a text. In a line that continues
// such a text they are spaces.
var cells = regexp.MustCompile(`^(?: {9,}| +\S.*? {2,}(?:\S+ {2,})?)`)

// fitted breaks a help text into lines of so many columns. It fills paragraphs. In a table, which is
// indented, it breaks the texts of the last column. Other indented lines are commands, and stay.
func fitted(text string, width int) string {
	var b strings.Builder
	var paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			b.WriteString(filled(strings.Join(paragraph, " "), "", "", width))
			paragraph = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if line != "" && line[0] != ' ' {
			paragraph = append(paragraph, line)
			continue
		}
		end()
		first := cells.FindString(line)
		if wide := utf8.RuneCountInString(first); first != "" && utf8.RuneCountInString(line) > width {
			indent := min(wide, width*6/10)
			b.WriteString(filled(line[len(first):], first, strings.Repeat(" ", indent), width))
		} else {
			b.WriteString(line + "\n")
		}
	}
	end()
	return b.String()
}

// filled is a text in lines. The first one begins with first, and the others with indent.
func filled(text, first, indent string, width int) string {
	var b strings.Builder
	b.WriteString(first)
	at, empty := utf8.RuneCountInString(first), true
	for _, word := range strings.Fields(text) {
		wide := utf8.RuneCountInString(word)
		if at+1+wide > width && !(empty && at <= len(indent)) {
			b.WriteString("\n" + indent)
			at, empty = len(indent), true
		}
		if !empty {
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at, empty = at+wide, false
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}
