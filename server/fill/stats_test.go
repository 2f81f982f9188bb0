package fill

import (
	"math"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that quantiles are right, within the precision of the buckets.
func TestQuantile(t *testing.T) {
	var h Histogram
	at := func(q float64) float64 {
		upTo, n, _ := h.Snapshot()
		return Quantile(q, upTo, n)
	}
	for range 98 {
		h.add(700 * time.Microsecond) // in 0.5..1 ms
	}
	if got := at(0.5); got < 500e-6 || got > 1e-3 {
		t.Error("median", got)
	}
	expect.Equal(t, at(1), 1e-3, "all")
	h.add(2 * time.Second)
	h.add(2 * time.Second)
	if got := at(0.98); math.Abs(got-1e-3) > 1e-9 {
		t.Error("0.98:", got)
	}
	if got := at(0.99); got != 1.75 { // the first of two in 1..2.5 s
		t.Error("0.99:", got)
	}
	for range 1000 {
		h.add(time.Hour)
	}
	expect.Equal(t, at(0.99), 60, "above the last bound")
}
