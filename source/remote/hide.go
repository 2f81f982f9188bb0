package remote

import (
	"html"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What JSON and addresses escape.
var (
	jsonEscapes = strings.NewReplacer(`\/`, "/", `\u0026`, "&", `\u003d`, "=", `\u002b`, "+")
	percent     = regexp.MustCompile("%[0-9A-Fa-f]{2}")
)

// plain undoes what servers do to a text before they repeat it: they escape it for HTML, for JSON, or for addresses.
func plain(said string) string {
	return percent.ReplaceAllStringFunc(jsonEscapes.Replace(html.UnescapeString(said)), func(code string) string {
		b, _ := strconv.ParseUint(code[1:], 16, 8) // two hexadecimal digits are always valid
		return string([]byte{byte(b)})
	})
}

// shortSecret is the length below which a secret is hidden only as a word of its own: a user named me must not
// take the letters out of other words.
const shortSecret = 4

// Hide returns at most the first most bytes of what a server said, with *** in place of secrets. Many servers repeat
// the request in their answer to it: as it was sent, decoded, or escaped in another way. A secret that begins in these
// bytes must end in said.
func Hide(said string, most int, secrets ...string) string {
	text := plain(said)
	hidden := make([]bool, len(text))
	for _, secret := range forms(secrets) {
		done := 0
		for from := 0; ; from++ {
			at := strings.Index(text[from:], secret)
			if at < 0 {
				break
			}
			from += at
			end := from + len(secret)
			if len(secret) < shortSecret && insideWord(text, from, end) {
				continue
			}
			for done = max(done, from); done < end; done++ {
				hidden[done] = true
			}
		}
	}
	var b strings.Builder
	for k := range min(len(text), most) {
		switch {
		case !hidden[k]:
			b.WriteByte(text[k])
		case k == 0 || !hidden[k-1]:
			b.WriteString("***")
		}
	}
	return b.String()
}

// forms returns each secret as plain text, with + for itself and for a space.
func forms(secrets []string) (all []string) {
	for _, secret := range secrets {
		if secret != "" {
			all = append(all, plain(secret), plain(strings.ReplaceAll(secret, "+", " ")))
		}
	}
	return all
}

// insideWord says whether a letter or a digit is next to a part of a text.
func insideWord(text string, begin, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:begin])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return isWord(before) || isWord(after)
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// SecretsOf returns what is secret in a request, and in those that were redirected to it: user, password and query.
func SecretsOf(r *http.Request) (all []string) {
	for r != nil {
		user, password, _ := r.BasicAuth()
		all = append(all, user, password, strings.TrimPrefix(r.Header.Get("Authorization"), "Basic "), r.URL.RawQuery)
		for piece := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
			if _, value, named := strings.Cut(piece, "="); named {
				piece = value
			}
			all = append(all, piece)
		}
		if r.Response == nil {
			return all
		}
		r = r.Response.Request
	}
	return all
}
