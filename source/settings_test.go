package source_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/source"
)

// Ensure that an error with a list fits one line.
func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                                  "plain",
		"config.yaml:\n  a: is no key\n  b: too": "config.yaml: a: is no key; b: too",
		"first\nsecond\n":                        "first; second",
	} {
		expect.Equal(t, source.OneLine(text), want, "")
	}
}

// Ensure that settings keep their values, and that a number that a decoder would change is refused.
func TestDecode(t *testing.T) {
	type settings struct {
		Count int           `key:"count"`
		Size  size.Bytes    `key:"size"`
		Wait  time.Duration `key:"wait"`
		Share float64       `key:"share"`
	}
	var got settings
	if err := (source.Settings{"count": 3.0, "size": "150MB", "wait": "8ms", "share": 2}).Decode(&got); err != nil || got != (settings{3, 150e6, 8 * time.Millisecond, 2}) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := (source.Settings{"size": 4096, "wait": time.Second}).Decode(&got); err != nil || got.Size != 4096 || got.Wait != time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	for want, s := range map[string]source.Settings{
		"1.5 is not a whole number":  {"count": 1.5},
		"count: 1e+30 is too large":  {"count": 1e30},
		"count: 9223372036854775808": {"count": uint64(1 << 63)},
		"8 has no unit":              {"wait": 8},
		`"8G" is not a size`:         {"size": "8G"},
		"unknown unit":               {"wait": "8 parsecs"},
		`unknown key "sizes"`:        {"sizes": 1},
		"count":                      {"count": "3"},
	} {
		if err := s.Decode(&got); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", s, err, want)
		}
	}
}
