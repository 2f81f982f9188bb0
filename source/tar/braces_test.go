package tar

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
)

// Ensure that patterns have the paths, or the errors, of testdata/braces.json. Tests of Python read it too.
func TestExpandBraces(t *testing.T) {
	var cases struct {
		Expanded []struct {
			Pattern string
			Paths   []string
		}
		Refused []struct{ Pattern, Error string }
	}
	text, err := os.ReadFile("testdata/braces.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil || len(cases.Expanded) == 0 || len(cases.Refused) == 0 {
		t.Fatal(cases, err)
	}
	for _, c := range cases.Expanded {
		if got, err := expandBraces(c.Pattern); err != nil || !reflect.DeepEqual(got, c.Paths) {
			t.Errorf("%q: %q, %v; want %q", c.Pattern, got, err, c.Paths)
		}
	}
	for _, c := range cases.Refused {
		if got, err := expandBraces(c.Pattern); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.Error) {
			t.Errorf("%s: %d paths, %v; want %q", c.Pattern, len(got), err, c.Error)
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
