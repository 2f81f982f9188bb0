package loader_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
)

// Ensure that a loader takes from a disk cache what the cache in memory has no room for, also in a later program.
func TestBehindADisk(t *testing.T) {
	const samples, bytes = 90, 3000
	path := filepath.Join(t.TempDir(), "a.tier")
	var loads atomic.Int64
	for program := range 2 {
		d, err := client.OpenDisk(path, client.DiskOptions{Samples: samples, SampleBytes: bytes, Size: 4 << 20, Fingerprint: "x"})
		fatal.If(t, err)
		c, err := client.Create("", client.Options{Samples: samples, SampleBytes: bytes, Slots: 30, Policy: client.PolicyCost, Disk: d})
		fatal.If(t, err)
		l, err := loader.New(loader.FromCache(c, func(_ context.Context, i int, dst []byte) ([]byte, error) {
			loads.Add(1)
			for range bytes {
				dst = append(dst, byte(i))
			}
			return dst, nil
		}), loader.Options{BatchSize: 8, Workers: 4})
		fatal.If(t, err)
		for range 2 {
			seen := 0
			for b, err := range l.Batches(t.Context()) {
				fatal.If(t, err)
				for k, i := range b.Indices() {
					if row := b.Sample(k); row[0] != byte(i) || row[bytes-1] != byte(i) {
						t.Fatalf("sample %d begins with %d", i, row[0])
					}
					seen++
				}
				b.Release()
			}
			expect.Equal(t, seen, samples, "samples")
			fatal.If(t, d.Flush(t.Context()))
		}
		if s, err := d.Stats(); err != nil || loads.Load() != samples || s.Hits == 0 || (s.Stored == samples) != (program == 0) {
			t.Errorf("program %d: %d loads, %+v, %v", program, loads.Load(), s, err)
		}
		c.Close()
		d.Close()
	}
}
