package cli

import "testing"

// Ensure that no size is written so that a unit has four digits before the point, or looks smaller than it is.
func TestByteCount(t *testing.T) {
	for n, want := range map[byteCount]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB", 1500 << 20: "1.5 GiB", 1<<64 - 1: "16.0 EiB", 150528: "147.0 KiB",
	} {
		if got := n.String(); got != want {
			t.Errorf("%d: %s, want %s", uint64(n), got, want)
		}
	}
}
