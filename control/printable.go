package control

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes text that somebody else wrote safe to print: \uFFFD stands for what controls a terminal, turns a line around, or is no UTF-8.
// Characters in keep stay.
func Printable(text string, keep ...rune) string {
	return strings.Map(func(r rune) rune {
		for _, k := range keep {
			if r == k {
				return r
			}
		}
		if Unprintable(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}

// Unprintable says whether a character does something to a terminal beside showing itself.
func Unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
