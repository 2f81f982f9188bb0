// Command disk-bench compares hits of the tier disk with bare preads and checksums of the same file, from the
// page cache and from the disk.
//
//	disk-bench DIR
//
// It writes samples of 110 KiB to a tier in DIR and reads them in random orders, with several readers at a
// time. "bare" is a pread of each sample from its place in the file, and a CRC-32C of it. "random" does the
// same with FADV_RANDOM, and "direct" with O_DIRECT: it reads whole pages into memory that begins with a
// page, and copies the sample from there. "in place" leaves the copy out. "disk" is what the disk gives: it reads the
// samples in the order of the file with O_DIRECT, 8 MiB at a time. Runs alternate. The last column is the rate beside that
// of "disk" in the same round.
package main

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
	"github.com/stocached/stocached/tier/disk"
)

var (
	runs    = flag.Int("runs", 9, "of each")
	readers = flag.Int("readers", 1, "at a time")
	size    = flag.Int("size", 110<<10, "bytes of a sample")
	samples = flag.Int("samples", 4000, "of the dataset")
	cold    = flag.Bool("cold", false, "empty the page cache of the file before each run")
)

const page = 4096

func main() {
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("give a folder on the disk")
	}
	ctx := context.Background()
	about := tier.About{Cache: "disk-bench", Log: slog.New(slog.DiscardHandler), Info: source.Info{Kind: "made", Samples: *samples,
		Fingerprint: "made", Schema: shm.Schema{SampleBytes: uint64(*size)}}}
	bytes := *samples**size + 64<<20
	t, err := disk.Open(source.Settings{"dir": flag.Arg(0), "size": fmt.Sprint(bytes)}, about)
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(flag.Arg(0), "disk-bench.tier")
	defer os.Remove(path)
	defer t.Close()
	for t.Status().Nodes[0].LeftOut {
		time.Sleep(time.Millisecond)
	}
	sample := make([]byte, *size, *size+tier.Spare)
	for i := range *samples {
		rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(sample)
		t.Put(ctx, i, sample)
	}
	if n := t.Status().Writes; n != uint64(*samples) {
		log.Fatalf("%d writes of %d samples: %+v", n, *samples, t.Status())
	}
	f, err := os.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		log.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		log.Fatal(err)
	}
	stride := int64(*size+15) &^ 15
	payload := (info.Size() - int64(*samples)*stride) &^ (2<<20 - 1)
	table := crc32.MakeTable(crc32.Castagnoli)
	random, err := os.Open(path)
	if err == nil {
		err = unix.Fadvise(int(random.Fd()), 0, 0, unix.FADV_RANDOM)
	}
	if err != nil {
		log.Fatal(err)
	}
	direct, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		log.Fatal(err)
	}
	bare := func(f *os.File) func(i int, dst, pages []byte) bool {
		return func(i int, dst, _ []byte) bool {
			n, err := f.ReadAt(dst[:*size], payload+int64(i)*stride)
			return err == nil && n == *size && crc32.Checksum(dst[:n], table) != 1
		}
	}
	whole := func(i int, pages []byte) []byte {
		at := payload + int64(i)*stride
		before := at % page
		n := (before + int64(*size) + page - 1) &^ (page - 1)
		if got, err := direct.ReadAt(pages[:n], at-before); int64(got) < before+int64(*size) {
			log.Fatal(got, err)
		}
		sample := pages[before:][:*size]
		if crc32.Checksum(sample, table) == 1 {
			log.Fatal("by chance")
		}
		return sample
	}
	kinds := map[string]func(i int, dst, pages []byte) bool{
		"tier":     func(i int, dst, _ []byte) bool { _, r := t.Get(ctx, i, *size, dst); return r == tier.Hit },
		"bare":     bare(f),
		"random":   bare(random),
		"direct":   func(i int, dst, pages []byte) bool { return copy(dst, whole(i, pages)) == *size },
		"in place": func(i int, _, pages []byte) bool { return len(whole(i, pages)) == *size },
	}
	names := []string{"disk", "bare", "tier", "random", "direct", "in place"}
	rates, cpus := map[string][]float64{}, map[string][]float64{}
	for range *runs {
		for _, name := range names {
			if *cold {
				if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
					log.Fatal(err)
				}
			}
			seconds, cpu, bytes := 0.0, 0.0, int64(*samples)*int64(*size)
			if name == "disk" {
				seconds, cpu, bytes = sequential(direct, payload)
			} else {
				seconds, cpu = run(kinds[name])
			}
			rates[name] = append(rates[name], float64(bytes)/seconds/1e6)
			cpus[name] = append(cpus[name], cpu/float64(*samples)*1e6)
		}
	}
	for _, name := range names {
		var ratios, ofDisk []float64
		for k, rate := range rates[name] {
			ratios = append(ratios, rates["bare"][k]/rate)
			ofDisk = append(ofDisk, rate/rates["disk"][k])
		}
		fmt.Printf("| %d | %d | %v | %s | %.0f | %.1f | %s | %s |\n", *size>>10, *readers, *cold, name, median(rates[name]),
			median(cpus[name]), spread(ratios), spread(ofDisk))
	}
}

// spread is the median of ratios, with the smallest and the largest.
func spread(x []float64) string {
	return fmt.Sprintf("%.3f (%.3f to %.3f)", median(x), slices.Min(x), slices.Max(x))
}

// sequential reads a file to its end, with several reads of 8 MiB at a time.
func sequential(f *os.File, from int64) (seconds, cpu float64, bytes int64) {
	const step = 8 << 20
	info, err := f.Stat()
	if err != nil {
		log.Fatal(err)
	}
	var next atomic.Int64
	next.Store(from)
	began, before := time.Now(), processor()
	var all sync.WaitGroup
	for range 4 { // enough requests for a disk that is far away
		all.Go(func() {
			b := make([]byte, step+page)
			b = b[-uintptr(unsafe.Pointer(&b[0]))%page:][:step]
			for {
				at := next.Add(step) - step
				if at >= info.Size() {
					return
				}
				if n, err := f.ReadAt(b, at); err != nil && int64(n) != info.Size()-at {
					log.Fatal("read at ", at, ": ", n, " bytes, ", err)
				}
			}
		})
	}
	all.Wait()
	return time.Since(began).Seconds(), processor() - before, info.Size() - from
}

// run reads all samples in a random order, and returns the seconds of the wall and of the processor.
func run(read func(i int, dst, pages []byte) bool) (seconds, cpu float64) {
	order, next := rand.Perm(*samples), atomic.Int64{}
	began, before := time.Now(), processor()
	var all sync.WaitGroup
	for range *readers {
		all.Go(func() {
			dst, pages := make([]byte, *size+tier.Spare), make([]byte, *size+3*page)
			pages = pages[-uintptr(unsafe.Pointer(&pages[0]))%page:] // O_DIRECT needs it
			for {
				k := int(next.Add(1)) - 1
				if k >= len(order) {
					return
				}
				if !read(order[k], dst, pages) {
					log.Fatal("sample ", order[k], " was not read")
				}
			}
		})
	}
	all.Wait()
	return time.Since(began).Seconds(), processor() - before
}

func processor() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
