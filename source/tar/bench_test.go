package tar_test

import (
	stdtar "archive/tar"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// BenchmarkRead reads samples in random order from the page cache with one goroutine, beside bare
// preads of the same bytes: one a member, into a reused buffer.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{200, 15 << 10, 150528} {
		samples := min(2000, 64<<20/size)
		var members []one
		for i := range samples {
			members = append(members, one{name: fmt.Sprintf("%06d.jpg", i), data: bytesOf(i, size)},
				one{name: fmt.Sprintf("%06d.cls", i), data: cls(i)})
		}
		path := writeFile(b, filepath.Join(b.TempDir(), "s.tar"), archive(b, stdtar.FormatUnknown, members...))
		padded := (size + 511) / 512 * 512
		bare := func(b *testing.B, members int) {
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			buffer := make([]byte, size+64)
			b.SetBytes(int64(size))
			for b.Loop() {
				at := int64(rand.IntN(samples)) * int64(512+padded+1024)
				if n, err := unix.Pread(int(f.Fd()), buffer[:size], at+512); n != size || err != nil {
					b.Fatal(n, err)
				}
				if members == 2 {
					if n, err := unix.Pread(int(f.Fd()), buffer[size:size+1], at+1024+int64(padded)); n != 1 || err != nil {
						b.Fatal(n, err)
					}
				}
			}
		}
		read := func(b *testing.B, settings source.Settings) {
			settings["path"] = path
			s := mustOpen(b, settings)
			buffer := make([]byte, s.Info().Schema.SampleBytes)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Read(context.Background(), rand.IntN(samples), buffer); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(fmt.Sprintf("%d/1field/pread", size), func(b *testing.B) { bare(b, 1) })
		b.Run(fmt.Sprintf("%d/1field/tar", size), func(b *testing.B) { read(b, source.Settings{"fields": []string{"jpg"}}) })
		b.Run(fmt.Sprintf("%d/2fields/pread", size), func(b *testing.B) { bare(b, 2) })
		b.Run(fmt.Sprintf("%d/2fields/tar", size), func(b *testing.B) { read(b, source.Settings{}) })
	}
}
