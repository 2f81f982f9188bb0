package tar

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/source"
)

// BenchmarkOpen opens a source for one shard with a kept index in the page cache. The shard is a
// hole of the size of its samples, because it is not read. STOCACHED_BENCH_SAMPLES is the number of
// samples, default a million. It also reports processor time, and memory outside the page cache.
func BenchmarkOpen(b *testing.B) {
	samples := 1_000_000
	if text := os.Getenv("STOCACHED_BENCH_SAMPLES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		samples = n
	}
	path := filepath.Join(b.TempDir(), "shard.tar")
	bytes := saveHole(b, path, samples)
	debug.FreeOSMemory() // memory of making it
	before, cpu := rssAnon(b), processorTime(b)
	most := 0.0
	for b.Loop() {
		s, err := Kind.Open(context.Background(), source.Settings{"path": path})
		if err != nil {
			b.Fatal(err)
		}
		if info := s.Info(); info.Samples != samples || len(info.Notes) != 2 || info.Notes[1].Name != "indexes kept" {
			b.Fatalf("%+v", info)
		}
		most = max(most, rssAnon(b)-before)
		s.Close()
	}
	b.ReportMetric(float64(bytes)/float64(samples), "bytes/sample")
	b.ReportMetric(most, "MB-RssAnon")
	b.ReportMetric((processorTime(b)-cpu).Seconds()*1000/float64(b.N), "ms-cpu/op")
}

// saveHole makes a shard without data, and an index as for that many samples of two members. It
// returns the bytes of the index.
func saveHole(b *testing.B, path string, samples int) int {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(path, int64(samples)*2048+1024); err != nil {
		b.Fatal(err)
	}
	stamp, err := source.StampOf(path)
	if err != nil {
		b.Fatal(err)
	}
	x := newBuilder(stamp)
	for i := range samples {
		for k, field := range []string{"jpg", "cls"} {
			if err := x.add(fmt.Sprintf("%09d.%s", i, field), int64(2*i+k)*1024, int64(i%1000)); err != nil {
				b.Fatal(err)
			}
		}
	}
	data := x.encode()
	if err := save(path+indexSuffix, data); err != nil {
		b.Fatal(err)
	}
	return len(data)
}

// rssAnon returns the memory of this process outside the page cache, in MB.
func rssAnon(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(n) / 1000
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
