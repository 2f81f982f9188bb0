package size

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that sizes are read exactly, and that ambiguous ones are refused.
func TestParse(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "4096": 4096, "17B": 17, "8GiB": 8 << 30, "500MB": 500e6, "1.5GiB": 3 << 29, " 2 TiB ": 2 << 40,
		"10kB": 10e3, "10KB": 10e3, "1KiB": 1024,
		"0.1kB": 100, "1.0005kB": 1000, "9223372036854775807": 1<<63 - 1,
	} {
		var b Bytes
		expect.Gives(Parse(text))(t, want, text)
		if err := b.UnmarshalText([]byte(text)); err != nil || uint64(b) != want {
			t.Errorf("%q as a setting: %d, %v; want %d", text, b, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "8G", "8gib", "-1", "1e9", "1.", ".5GiB", "1.2.3", "8 GiB x", "0x10",
		"1.5", "1.0B", "9223372036854775808", "9000000TiB", "1/2", "1_000"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}
