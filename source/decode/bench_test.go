package decode_test

import (
	"bytes"
	"context"
	"image/jpeg"
	"testing"
)

// A JPEG of 500 x 375, 4:2:0, of 74 KB, to (3, 256, 256); the decoder alone; and both on all cores.
func BenchmarkJPEG(b *testing.B) {
	source := files(b, "500x375.jpg")
	s := open(b, source, map[string]any{"resize": []int{256, 256}})
	perSecond := func(b *testing.B) { b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "samples/s") }
	b.Run("sample", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]byte, 3*256*256)
		for b.Loop() {
			if _, err := s.Read(context.Background(), 0, dst); err != nil {
				b.Fatal(err)
			}
		}
		perSecond(b)
	})
	b.Run("decoder", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := jpeg.Decode(bytes.NewReader(source.files[0])); err != nil {
				b.Fatal(err)
			}
		}
		perSecond(b)
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			dst := make([]byte, 3*256*256)
			for pb.Next() {
				if _, err := s.Read(context.Background(), 0, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
		perSecond(b)
	})
}
