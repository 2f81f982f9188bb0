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
	marks   = regexp.MustCompile(`(?s)\\.|[{},]`)
	escapes = regexp.MustCompile(`(?s)\\.`)
)

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // the order of letters in a range

// expandBraces returns the paths of a pattern, like a shell and webdataset: {a,b}, {000..012} (with
// equal width if a number begins with 0), {0..10..2}, {a..f}, nested ones. A backslash makes the
// next character literal, as Python's braces.expanded says. It returns ErrInvalid when braces do not
// match, or when there are more than mostPaths.
func expandBraces(pattern string) ([]string, error) {
	all, err := expand(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w", source.ErrInvalid, pattern, err)
	}
	for k, text := range all {
		all[k] = escapes.ReplaceAllStringFunc(text, literal)
	}
	return all, nil
}

// literal returns what stands for the character after a backslash: a wildcard becomes [*], [?], [[].
func literal(escape string) string {
	if strings.ContainsAny(escape, "*?[") {
		return "[" + escape[1:] + "]"
	}
	return escape[1:]
}

// expand is expandBraces, but keeps the backslashes.
func expand(pattern string) ([]string, error) {
	all, end, depth := []string{""}, 0, 0
	var cuts []int // the outer brace, and the commas that split its inside
	for _, mark := range marks.FindAllStringIndex(pattern, -1) {
		at := mark[0]
		switch pattern[at] {
		case '{':
			if depth++; depth == 1 {
				cuts = []int{at}
			}
		case ',':
			if depth == 1 {
				cuts = append(cuts, at)
			}
		case '}':
			if depth--; depth < 0 {
				return nil, fmt.Errorf("a } without its {; write \\} for the character itself")
			}
			if depth > 0 {
				continue
			}
			var parts []string
			cuts = append(cuts, at)
			for k := range cuts[1:] {
				parts = append(parts, pattern[cuts[k]+1:cuts[k+1]])
			}
			choices, err := alternatives(parts)
			if err == nil {
				all, err = product(all, pattern[end:cuts[0]], choices)
			}
			if err != nil {
				return nil, err
			}
			end = at + 1
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("a { without its }; write \\{ for the character itself")
	}
	return product(all, pattern[end:], []string{""})
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

// alternatives returns the texts for the inside of a pair of braces, which commas split.
func alternatives(parts []string) ([]string, error) {
	if len(parts) == 1 {
		if m := numbers.FindStringSubmatch(parts[0]); m != nil {
			return numberRange(m[1], m[2], m[3])
		}
		if m := letters.FindStringSubmatch(parts[0]); m != nil {
			from, to := strings.Index(alphabet, m[1]), strings.Index(alphabet, m[2])
			return steps(from, to, m[3], func(k int) string { return alphabet[k : k+1] })
		}
		some, err := expand(parts[0])
		for k := range some { // {x} is no choice: it stays
			some[k] = "{" + some[k] + "}"
		}
		return some, err
	}
	var all []string
	for _, part := range parts {
		some, err := expand(part)
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); len(all) > mostPaths {
			return nil, fmt.Errorf("the pattern has more than %d paths", mostPaths)
		}
	}
	return all, nil
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
