package table

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that an unknown value is "-" for people and null for programs, and that no string controls
// a terminal.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		value      any
		text, json string
	}{
		{nil, "-", "null"}, {"", "-", `""`}, {true, "yes", "true"}, {Count(1234567), "1,234,567", "1234567"},
		{Count(12), "12", "12"},
		{Fraction(1, 4), "0.2500", "0.25"}, {Fraction(0, 0), "-", "null"}, {PerSecond(math.Inf(1)), "-", "null"},
		{PerSecond(0.26), "0.3", "0.26"},
		{PerSecond(12345.6), "12,346", "12345.6"}, {BytesPerSecond(2048), "2.0 KiB/s", "2048"},
		{BytesPerSecond(math.NaN()), "-", "null"},
		{Moment{}, "-", "null"}, {Moment(time.Unix(0, 0)), "-", "null"}, {List[int](nil), "-", "[]"},
		{List[int]{1, 2}, "1,2", "[1,2]"},
		{"a\x1b[2Jb", `"a\x1b[2Jb"`, `"a\u001b[2Jb"`}, {"bad\xff", `"bad\xff"`, `"bad\ufffd"`},
		{"schön", "schön", `"schön"`},
	} {
		b, err := json.Marshal(c.value)
		if err != nil || string(b) != c.json || Text(c.value) != c.text {
			t.Errorf("%#v: %s and %s, %v; want %s and %s", c.value, Text(c.value), b, err, c.text, c.json)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[float64]string{math.NaN(): "-", 0: "0s", 3e-9: "3ns", 12.3456e-6: "12.3µs",
		0.0123456: "12.3ms", 1.23456: "1.23s", 100: "1m40s"} {
		expect.Equal(t, Duration(d).String(), want, "%v", d)
	}
}

// Ensure that no size has four digits before the point, or looks smaller than it is.
func TestBytes(t *testing.T) {
	for n, want := range map[Bytes]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB", 1500 << 20: "1.5 GiB",
		1<<64 - 1: "16.0 EiB", 150528: "147.0 KiB",
	} {
		expect.Equal(t, n.String(), want, "%d", uint64(n))
	}
}
