package decode_test

import (
	"context"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// A JPEG of 500 x 375, 4:2:0, of 74 KB, to (3, 256, 256), alone and on all cores.
func BenchmarkJPEG(b *testing.B) {
	source := files(b, "500x375.jpg")
	s := open(b, source, map[string]any{"resize": []int{256, 256}})
	// Per processor time, so that other load does not count. That of the helpers is theirs.
	perSecond := func(b *testing.B, before time.Duration) {
		b.ReportMetric(float64(b.N)/(processorTime(b)-before).Seconds(), "samples/s/core")
	}
	b.Run("sample", func(b *testing.B) {
		b.ReportAllocs()
		before := processorTime(b)
		dst := make([]byte, 3*256*256)
		for b.Loop() {
			fatal.Value(s.Read(context.Background(), 0, dst))(b)
		}
		perSecond(b, before)
	})
	b.Run("parallel", func(b *testing.B) {
		before := processorTime(b)
		b.RunParallel(func(pb *testing.PB) {
			dst := make([]byte, 3*256*256)
			for pb.Next() {
				fatal.Value(s.Read(context.Background(), 0, dst))(b)
			}
		})
		perSecond(b, before)
	})
}

// processorTime returns the processor time of this process so far, with the garbage collector.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	fatal.If(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
