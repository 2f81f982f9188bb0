package order

import "testing"

// Four at a time equal one by one: for all sizes up to some hundred, odd ones, with steps, and when
// fewer than four are left.
func TestFourAtATime(t *testing.T) {
	sizes := []uint64{65536, 65537, 1281167, 1<<30 + 1, MaxSamples}
	for n := uint64(1); n < 700; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		e, err := Order{Samples: n, Kind: Shuffled, Seed: n}.Epoch(3)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []uint64{1, 2, 3, 7} {
			for _, first := range []uint64{0, n / 3, n - min(n, 30), n - 1, n} {
				var dst [41]int
				got := e.Fill(dst[:], first, step)
				want := 0
				for position := first; position < n && want < len(dst); position += step {
					if dst[want] != int(e.At(position)) {
						t.Fatalf("%d samples, from %d by %d: index %d is %d, want %d", n, first, step, want, dst[want], e.At(position))
					}
					want++
				}
				if got != want {
					t.Fatalf("%d samples, from %d by %d: %d indices, want %d", n, first, step, got, want)
				}
			}
		}
	}
}
