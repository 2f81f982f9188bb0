package npy

import (
	"fmt"
	"strconv"
)

// A header is a Python literal of these parts only: dicts, tuples, lists, strings, whole numbers,
// True, False and None.
type (
	dict  map[string]any
	tuple []any
	list  []any
)

// deepest is the deepest nesting of literals: arrays of plain numbers need 2, structured types a
// few more.
const deepest = 16

// literal parses one Python literal. Values are dict, tuple, list, string, int64, bool and nil.
func literal(text string) (any, error) {
	p := parser{text: text}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.next(); p.at < len(text) {
		return nil, p.fail("nothing more")
	}
	return v, nil
}

type parser struct {
	text string
	at   int
}

// fail says what the parser expected, and where.
func (p *parser) fail(expected string) error {
	if p.at >= len(p.text) {
		return fmt.Errorf("it ends where %s should be", expected)
	}
	return fmt.Errorf("%q at character %d, where %s should be", p.text[p.at:min(p.at+12, len(p.text))], p.at, expected)
}

// next returns the next character that is no white space, without consuming it; 0 at the end.
func (p *parser) next() byte {
	for p.at < len(p.text) {
		switch c := p.text[p.at]; c {
		case ' ', '\t', '\n', '\r', '\f':
			p.at++
		default:
			return c
		}
	}
	return 0
}

func (p *parser) value(depth int) (any, error) {
	if depth > deepest {
		return nil, fmt.Errorf("literals are nested more than %d deep", deepest)
	}
	switch c := p.next(); {
	case c == '{':
		return p.dict(depth)
	case c == '(':
		items, comma, err := p.items(')', depth)
		if err == nil && len(items) == 1 && !comma {
			return items[0], nil // parentheses around a value
		}
		return tuple(items), err
	case c == '[':
		items, _, err := p.items(']', depth)
		return list(items), err
	case c == '\'' || c == '"':
		return p.string(c)
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	start := p.at
	for p.at < len(p.text) && (p.text[p.at] >= 'a' && p.text[p.at] <= 'z' || p.text[p.at] >= 'A' && p.text[p.at] <= 'Z') {
		p.at++
	}
	switch p.text[start:p.at] {
	case "True":
		return true, nil
	case "False":
		return false, nil
	case "None":
		return nil, nil
	}
	p.at = start
	return nil, p.fail("a value")
}

// items parses values up to a closing bracket, and says whether a comma follows the last one.
func (p *parser) items(end byte, depth int) (items []any, comma bool, err error) {
	p.at++
	for p.next() != end {
		if len(items) > 0 && !comma {
			return nil, false, p.fail("a comma or " + string(end))
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, false, err
		}
		items = append(items, v)
		if comma = p.next() == ','; comma {
			p.at++
		}
	}
	p.at++
	return items, comma, nil
}

func (p *parser) dict(depth int) (dict, error) {
	p.at++
	d, comma := dict{}, true
	for p.next() != '}' {
		if !comma {
			return nil, p.fail("a comma or }")
		}
		c := p.next()
		if c != '\'' && c != '"' {
			return nil, p.fail("a key in quotes")
		}
		key, err := p.string(c)
		if err != nil {
			return nil, err
		}
		if _, twice := d[key]; twice {
			return nil, fmt.Errorf("it has the key %q twice", key)
		}
		if p.next() != ':' {
			return nil, p.fail("a colon")
		}
		p.at++
		if d[key], err = p.value(depth + 1); err != nil {
			return nil, err
		}
		if comma = p.next() == ','; comma {
			p.at++
		}
	}
	p.at++
	return d, nil
}

// string parses a string. It does not decode backslashes, because no string that we compare has
// one.
func (p *parser) string(quote byte) (string, error) {
	p.at++
	for start := p.at; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '\\':
			p.at++
		case '\n':
			return "", p.fail("the end of a string")
		case quote:
			p.at++
			return p.text[start : p.at-1], nil
		}
	}
	p.at = len(p.text)
	return "", p.fail("the end of a string")
}

func (p *parser) number() (int64, error) {
	start := p.at
	for p.at++; p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9'; p.at++ {
	}
	n, err := strconv.ParseInt(p.text[start:p.at], 10, 64)
	if err != nil {
		p.at = start
		return 0, p.fail("a whole number of 64 bits")
	}
	if p.at < len(p.text) && p.text[p.at] == 'L' { // a long integer as Python 2 wrote it
		p.at++
	}
	return n, nil
}
