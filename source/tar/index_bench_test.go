package tar

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stocached/stocached/source"
)

// BenchmarkOpenIndex opens the kept index of one shard: maps it, checks it, and chooses two fields of each sample. STOCACHED_BENCH_SAMPLES: how many samples, default a
// million.
func BenchmarkOpenIndex(b *testing.B) {
	samples := 1_000_000
	if text := os.Getenv("STOCACHED_BENCH_SAMPLES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		samples = n
	}
	path := filepath.Join(b.TempDir(), "x"+indexSuffix)
	bytes := saveIndex(b, path, samples)
	runtime.GC() // of what it was made in
	wanted := []field{{name: "jpg", names: []string{"jpg"}}, {name: "cls", names: []string{"cls"}}}
	b.ReportAllocs()
	for b.Loop() {
		x, in, err := load(path, source.Stamp{Bytes: 1 << 50, ModifiedNs: 1})
		if err != nil {
			b.Fatal(err)
		}
		c, err := choose(&shard{path: path, index: x}, wanted, false)
		if err != nil || c.samples != samples {
			b.Fatal(c.samples, err)
		}
		in.close()
	}
	b.ReportMetric(float64(bytes)/float64(samples), "bytes/sample")
}

// saveIndex makes an index of that many samples of two members, and returns its bytes.
func saveIndex(b *testing.B, path string, samples int) int {
	x := newBuilder(source.Stamp{Bytes: 1 << 50, ModifiedNs: 1})
	for i := range samples {
		for k, field := range []string{"jpg", "cls"} {
			if err := x.add(fmt.Sprintf("%09d.%s", i, field), int64(2*i+k)*1024, int64(i%1000)); err != nil {
				b.Fatal(err)
			}
		}
	}
	data := x.encode()
	if err := save(path, data); err != nil {
		b.Fatal(err)
	}
	return len(data)
}
