package source

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oneLine joins lines. A line that ends with a colon begins a list.
var oneLine = regexp.MustCompile(`(:?)\n\s*`)

// OneLine returns a text in one line, for lists of problems that have a line for each.
func OneLine(text string) string {
	return oneLine.ReplaceAllStringFunc(strings.TrimSpace(text), func(end string) string {
		if strings.HasPrefix(end, ":") {
			return ": "
		}
		return "; "
	})
}

// Complaints returns the complaints of a decoder of settings (mapstructure), one for each line, in
// the words of a configuration: the key comes first, and no Go types are named.
func Complaints(err error) (lines []string) {
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "* ")
		if line == "" || strings.HasPrefix(line, "decoding failed") {
			continue
		}
		lines = append(lines, plain(line))
	}
	return lines
}

// The decoder's complaints about the type of a value. The quoted key comes first.
var (
	anyComplaint = regexp.MustCompile(`^'([^']*)' (.*)$`)
	otherType    = regexp.MustCompile(`^expected type '([^']*)', got unconvertible type '([^']*)'`)
	noMapping    = regexp.MustCompile(`^expected a map or struct, got "([^"]*)"$|^expected a map, got '([^']*)'$`)
	noList       = regexp.MustCompile(`^source data must be an array or slice, got (.*)$`)
	outOfRange   = regexp.MustCompile(`^cannot parse value as '[^']*': (\S+) overflows`)
)

// plain rewords one complaint.
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
	} else if m := outOfRange.FindStringSubmatch(what); m != nil {
		what = fmt.Sprintf("%s is out of range", m[1])
	}
	return key + ": " + what
}

// typeName returns the name of a Go type in the words of a configuration.
func typeName(of string) string {
	switch {
	case of == "string":
		return "a text"
	case of == "bool":
		return "true or false"
	case of == "time.Time", of == "struct": // nothing else is a struct
		return "a date"
	case of == "size.Bytes":
		return "a size, such as 4096 or 64MiB,"
	case strings.HasPrefix(of, "int"), strings.HasPrefix(of, "uint"):
		return "a whole number"
	case strings.HasPrefix(of, "float"):
		return "a number"
	case strings.HasPrefix(of, "[]"), of == "slice":
		return "a list"
	case strings.HasPrefix(of, "map"):
		return "a mapping"
	}
	return "another kind of value"
}

// Show returns a value in the syntax of a configuration.
func Show(value any) string {
	if text, ok := value.(string); ok {
		return strconv.Quote(text)
	}
	return flow(value)
}

// flow returns a value as part of another one.
func flow(value any) string {
	switch value := value.(type) {
	case nil:
		return "null"
	case []any:
		parts := make([]string, len(value))
		for k, v := range value {
			parts[k] = flow(v)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		parts := []string{}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			parts = append(parts, key+": "+flow(value[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(value)
}

// refuseDate refuses a date in place of keys with values. A decoder would take it for a mapping
// without keys.
func refuseDate(from, to reflect.Type, value any) (any, error) {
	if from == reflect.TypeFor[time.Time]() && (to.Kind() == reflect.Struct || to.Kind() == reflect.Map) {
		return nil, errors.New("keys with values are wanted, and there is a date")
	}
	return value, nil
}

// ParseTime parses a time with a unit.
func ParseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err == nil:
		return d, nil
	case strings.Contains(err.Error(), "unknown unit"):
		return 0, fmt.Errorf("%q is no time, such as 30s, 10m or 1.5h: unknown unit", text)
	}
	return 0, fmt.Errorf("%q is no time, such as 30s, 10m or 1.5h", text)
}

// listable are texts that a user may have meant as a list.
var listable = regexp.MustCompile(`^[\w.;,/ -]+$`)

// Exact refuses values that a decoder would change silently: 1.5 as a whole number, and 8 as a
// duration, which would be 8 ns. It parses durations.
func Exact(from, to reflect.Type, value any) (any, error) {
	duration := to == reflect.TypeFor[time.Duration]() && from != to
	switch {
	case duration && from.Kind() == reflect.String:
		return ParseTime(value.(string))
	case duration:
		return nil, fmt.Errorf("%s has no unit: write a time such as 30s, 10m or 1.5h", Show(value))
	case from.Kind() == reflect.String && to.Kind() == reflect.Slice && listable.MatchString(value.(string)):
		return nil, fmt.Errorf("a list is wanted, and there is a text; write [%s]", value)
	case from.Kind() == reflect.Float64 && (reflect.Zero(to).CanInt() || reflect.Zero(to).CanUint()):
		if f := reflect.ValueOf(value).Float(); f != math.Trunc(f) {
			return nil, fmt.Errorf("%v is not a whole number", value)
		} else if math.Abs(f) > 1<<53 {
			return nil, fmt.Errorf("%v is too large", value)
		}
	case from.Kind() == reflect.Uint64 && reflect.Zero(to).CanInt() && reflect.ValueOf(value).Uint() > math.MaxInt64:
		return nil, fmt.Errorf("%v is too large", value) // the decoder would make it negative
	}
	return value, nil
}
