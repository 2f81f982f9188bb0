package control

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes foreign text safe to print. It replaces characters that control a terminal or
// change the direction of a line, and invalid UTF-8, by \uFFFD. Characters in keep stay.
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

// Unprintable says whether a character does more to a terminal than show itself.
func Unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
