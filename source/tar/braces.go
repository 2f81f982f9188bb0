package tar

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/stocached/stocached/source"
)

// mostPaths is the most paths of one pattern: a mistake such as {0..999999999} must not use up the
// memory.
const mostPaths = 1 << 20

var (
	numbers = regexp.MustCompile(`^(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$`)
	letters = regexp.MustCompile(`^([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$`)
)

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // the order of letters in a range

// expandBraces returns the paths of a pattern, like a shell and webdataset: {a,b}, {000..012} (with
// equal width if a number begins with 0), {0..10..2}, {a..f}, nested ones. A backslash makes the
// next character literal. It returns ErrInvalid when braces do not match, or when there are more
// than mostPaths.
func expandBraces(pattern string) ([]string, error) {
	all, err := expand(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w", source.ErrInvalid, pattern, err)
	}
	for k, text := range all {
		all[k] = unescape(text)
	}
	return all, nil
}

// expand is expandBraces, but keeps the backslashes.
func expand(pattern string) ([]string, error) {
	all := []string{""}
	literal, depth, begin := 0, 0, 0
	for at := 0; at < len(pattern); at++ {
		switch pattern[at] {
		case '\\':
			at++
		case '{':
			if depth == 0 {
				begin = at
			}
			depth++
		case '}':
			if depth--; depth < 0 {
				return nil, fmt.Errorf("a } without its {; write \\} for the character itself")
			}
			if depth > 0 {
				continue
			}
			choices, err := alternatives(pattern[begin+1 : at])
			if err != nil {
				return nil, err
			}
			if all, err = product(all, pattern[literal:begin], choices); err != nil {
				return nil, err
			}
			literal = at + 1
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("a { without its }; write \\{ for the character itself")
	}
	return product(all, pattern[literal:], []string{""})
}

// product returns head + middle + tail for all heads and tails. The tail changes fastest.
func product(heads []string, middle string, tails []string) ([]string, error) {
	if len(heads)*len(tails) > mostPaths {
		return nil, fmt.Errorf("the pattern has more than %d paths", mostPaths)
	}
	all := make([]string, 0, len(heads)*len(tails))
	for _, head := range heads {
		for _, tail := range tails {
			all = append(all, head+middle+tail)
		}
	}
	return all, nil
}

// alternatives returns the texts for the inside of a pair of braces.
func alternatives(inside string) ([]string, error) {
	if m := numbers.FindStringSubmatch(inside); m != nil {
		return numberRange(m[1], m[2], m[3])
	}
	if m := letters.FindStringSubmatch(inside); m != nil {
		from, to := strings.Index(alphabet, m[1]), strings.Index(alphabet, m[2])
		return steps(from, to, m[3], func(k int) string { return alphabet[k : k+1] })
	}
	var all []string
	parts := splitCommas(inside)
	for _, part := range parts {
		some, err := expand(part)
		if err != nil {
			return nil, err
		}
		if len(parts) == 1 { // {x} is no choice: it stays
			return product([]string{"{"}, "", appendAll(some, "}"))
		}
		if all = append(all, some...); len(all) > mostPaths {
			return nil, fmt.Errorf("the pattern has more than %d paths", mostPaths)
		}
	}
	return all, nil
}

func appendAll(texts []string, end string) []string {
	for k := range texts {
		texts[k] += end
	}
	return texts
}

// numberRange counts from one number to another, with leading zeros if one of them has some.
func numberRange(from, to, step string) ([]string, error) {
	width := 0
	for _, s := range []string{from, to} {
		if s != "0" && s != "-0" && (strings.HasPrefix(s, "0") || strings.HasPrefix(s, "-0")) {
			width = max(len(from), len(to))
		}
	}
	first, err := strconv.Atoi(from)
	if err != nil {
		return nil, err
	}
	last, err := strconv.Atoi(to)
	if err != nil {
		return nil, err
	}
	return steps(first, last, step, func(k int) string { return fmt.Sprintf("%0*d", width, k) })
}

// steps returns the texts of the numbers from first to last, upwards or downwards.
func steps(first, last int, step string, text func(int) string) ([]string, error) {
	by := 1
	if step != "" {
		n, err := strconv.Atoi(step)
		if err != nil {
			return nil, err
		}
		by = max(n, 1)
	}
	distance, sign := uint64(last)-uint64(first), 1
	if first > last {
		distance, sign = -distance, -1
	}
	if distance/uint64(by) >= mostPaths {
		return nil, fmt.Errorf("the pattern has more than %d paths", mostPaths)
	}
	all := make([]string, distance/uint64(by)+1)
	for k := range all {
		all[k] = text(first + sign*k*by)
	}
	return all, nil
}

// splitCommas splits at the commas outside inner braces.
func splitCommas(text string) []string {
	var parts []string
	depth, begin := 0, 0
	for at := 0; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[begin:at])
				begin = at + 1
			}
		}
	}
	return append(parts, text[begin:])
}

// unescape removes the backslashes, except one at the end.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var plain strings.Builder
	for at := 0; at < len(text); at++ {
		if text[at] == '\\' && at+1 < len(text) {
			at++
		}
		plain.WriteByte(text[at])
	}
	return plain.String()
}
