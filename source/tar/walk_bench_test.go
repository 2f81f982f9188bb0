package tar

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/source"
)

// BenchmarkWalk makes the index of a shard of 10,000 samples of two members in the page cache. It
// skips data, so their size matters little.
func BenchmarkWalk(b *testing.B) {
	for _, size := range []int{200, 15 << 10} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for i := range 10_000 {
			for _, m := range []struct {
				field string
				bytes int
			}{{"jpg", size}, {"cls", 1}} {
				if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.%s", i, m.field), Size: int64(m.bytes)}); err != nil {
					b.Fatal(err)
				}
				if _, err := w.Write(make([]byte, m.bytes)); err != nil {
					b.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		path := filepath.Join(b.TempDir(), "s.tar")
		if err := os.WriteFile(path, archive.Bytes(), 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f, err := source.OpenFile(path)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			for b.Loop() {
				if _, err := walk(context.Background(), f); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/10_000, "us/sample")
		})
	}
}
