package wrap_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
)

// Ensure that reading block by block through a window of 16 blocks reaches nearly the full rate of
// a hard disk, compared with single samples in random order. Only the seek of each block is lost,
// so blocks must have about 8 MB (8 ms are 1.2 MB of 150 MB/s).
func TestDisk(t *testing.T) {
	for size, per := range map[int]int{150_528: 56, 15_000: 560} {
		n := 20 * per
		took := func(read func(disk source.Source, want [][]byte)) (took time.Duration) {
			synctest.Test(t, func(t *testing.T) {
				inner, want := records(t, n, size)
				disk, err := wrap.Rate(blocky{inner, per}, wrap.RateOptions{BytesPerSecond: 150e6, Latency: 8 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				read(disk, want)
				took = time.Since(begun)
			})
			return took
		}
		single := took(func(disk source.Source, want [][]byte) {
			for _, i := range rand.Perm(n) {
				wantSample(t, disk, want, i)
			}
		})
		blocks := took(func(disk source.Source, want [][]byte) {
			a, err := wrap.ReadAhead(disk, wrap.ReadAheadOptions{Size: 160e6, Blocks: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range windowed(20, per, 16) {
				wantSample(t, a, want, i)
			}
			a.Close()
		})
		transfer := float64(size) / 150e6
		limit := (0.008 + transfer) / transfer
		gain := single.Seconds() / blocks.Seconds()
		t.Logf("%d bytes: %.1f times as fast, of at most %.1f", size, gain, limit)
		if gain < 0.85*limit || gain > limit {
			t.Errorf("%d bytes: %.1f times as fast (%v, %v), of at most %.1f", size, gain, single, blocks, limit)
		}
	}
}
