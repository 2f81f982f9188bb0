package config

import (
	"fmt"
	"regexp"
	"strings"
)

// The decoder's complaints about the type of a value, after the key in quotation marks.
var (
	anyComplaint = regexp.MustCompile(`^'([^']*)' (.*)$`)
	otherType    = regexp.MustCompile(`^expected type '([^']*)', got unconvertible type '([^']*)'`)
	noMapping    = regexp.MustCompile(`^expected a map or struct, got "([^"]*)"$|^expected a map, got '([^']*)'$`)
	noList       = regexp.MustCompile(`^source data must be an array or slice, got (.*)$`)
)

// plain says a complaint of the decoder in the words of the file, with the key first as in all others.
func plain(line string) string {
	parts := anyComplaint.FindStringSubmatch(line)
	if parts == nil {
		return line
	}
	key, what := parts[1], parts[2]
	if m := otherType.FindStringSubmatch(what); m != nil {
		what = fmt.Sprintf("%s is wanted, and there is %s", typeName(m[1]), typeName(m[2]))
	} else if m := noMapping.FindStringSubmatch(what); m != nil {
		what = fmt.Sprintf("keys with values are wanted, and there is %s", typeName(m[1]+m[2]))
	} else if m := noList.FindStringSubmatch(what); m != nil {
		what = fmt.Sprintf("a list is wanted, and there is %s", typeName(m[1]))
	}
	return key + ": " + what
}

// typeName is what a type of Go is in the file.
func typeName(of string) string {
	switch {
	case of == "string":
		return "a text"
	case of == "bool":
		return "true or false"
	case strings.HasPrefix(of, "int"), strings.HasPrefix(of, "uint"):
		return "a whole number"
	case strings.HasPrefix(of, "float"):
		return "a number"
	case strings.HasPrefix(of, "[]"), of == "slice":
		return "a list"
	case strings.HasPrefix(of, "map"):
		return "a mapping"
	}
	return of
}
