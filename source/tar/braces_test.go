package tar

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
)

// The expected lists are those of the Python package braceexpand 0.1.7, which webdataset uses.
func TestExpandBraces(t *testing.T) {
	for pattern, want := range map[string]string{
		"train-{000000..000003}.tar": "train-000000.tar train-000001.tar train-000002.tar train-000003.tar",
		"{8..11}":                    "8 9 10 11",
		"{07..10}":                   "07 08 09 10",
		"{4..1}":                     "4 3 2 1",
		"{2..-1}":                    "2 1 0 -1",
		"{-01..1}":                   "-01 000 001",
		"{0..10..3}":                 "0 3 6 9",
		"{10..0..-4}":                "10 6 2",
		"{0..2..0}":                  "0 1 2",
		"{a..g..2}":                  "a c e g",
		"{c..a}":                     "c b a",
		"{Y..b}":                     "Y Z a b",
		"{a,b}/{0..1}.tar":           "a/0.tar a/1.tar b/0.tar b/1.tar",
		"python{2.{5..7},3.{2,3}}":   "python2.5 python2.6 python2.7 python3.2 python3.3",
		"x{,-y}":                     "x x-y",
		"{a}":                        "{a}",
		"{a{b,c}}":                   "{ab} {ac}",
		"plain":                      "plain",
		`\{1,2\}`:                    "{1,2}",
		`{1\{2,3}`:                   "1{2 3",
		`{a\,b,c}`:                   "a,b c",
		`end\`:                       `end\`,
		"{}":                         "{}",
		"{1..a}":                     "{1..a}",
	} {
		got, err := expandBraces(pattern)
		if err != nil || !reflect.DeepEqual(got, strings.Split(want, " ")) {
			t.Errorf("%s: %q, %v; want %s", pattern, got, err, want)
		}
	}
	for pattern, want := range map[string]string{"{1{2,3}": "without its }", "a}b": "without its {",
		"{0..9999999}": "more than 1048576", "{0..1023}{0..1024}": "more than 1048576",
		"{0..99999999999999999999}": "out of range", "{-9223372036854775808..9223372036854775807}": "more than", "{{0..1000000},{0..1000000}}": "more than"} {
		if got, err := expandBraces(pattern); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d paths, %v; want %q", pattern, len(got), err, want)
		}
	}
}

// Ensure that no pattern makes expandBraces panic or use unlimited memory.
func FuzzExpandBraces(f *testing.F) {
	for _, pattern := range []string{"{0..3}", "{a,b{c,d}}", `\{`, "{", "}", "{,,}", "{9223372036854775807..9223372036854775806}", "{1..2..9999999999999999999}"} {
		f.Add(pattern)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		if len(pattern) > 60 {
			return
		}
		got, err := expandBraces(pattern)
		if (err == nil) != (len(got) > 0) || len(got) > mostPaths {
			t.Fatalf("%q: %d paths, %v", pattern, len(got), err)
		}
	})
}
