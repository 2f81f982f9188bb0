package dir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// many makes files of size bytes each, 1,000 in a folder.
func many(b *testing.B, files, size int) (root string, paths []string) {
	b.Helper()
	root = b.TempDir()
	content := make([]byte, size)
	for i := range files {
		path := filepath.Join(root, fmt.Sprintf("%03d", i/1000), fmt.Sprintf("%06d.jpg", i))
		if i%1000 == 0 {
			if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			b.Fatal(err)
		}
		paths = append(paths, path)
	}
	return root, paths
}

// BenchmarkRead reads random files in the page cache with 2 goroutines. bare is open, read into a
// reused buffer, close.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct{ files, size int }{{10_000, 4 << 10}, {2_000, 110 << 10}, {200, 4 << 10},
		{200, 110 << 10}} {
		root, paths := many(b, c.files, c.size)
		bare := func(i int, dst []byte) (int, error) {
			fd, err := unix.Open(paths[i], unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			return unix.Read(fd, dst)
		}
		name := fmt.Sprintf("%d files of %d", c.files, c.size)
		b.Run(name+"/bare", func(b *testing.B) { reading(b, 2, c.files, c.size, bare) })
		for _, kept := range []int{0, c.files / 2, c.files} {
			s, err := open(root, source.Settings{"descriptors": kept})
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/kept %d", name, kept), func(b *testing.B) {
				reading(b, 2, c.files, c.size, func(i int, dst []byte) (int, error) { return s.Read(context.Background(), i, dst) })
			})
			s.Close()
		}
	}
}

// reading shares b.N reads of random samples among goroutines.
func reading(b *testing.B, goroutines, samples, size int, read func(i int, dst []byte) (int, error)) {
	b.SetBytes(int64(size))
	var next atomic.Int64
	var readers sync.WaitGroup
	for range goroutines {
		readers.Go(func() {
			dst := make([]byte, size)
			for next.Add(1) <= int64(b.N) {
				if n, err := read(rand.IntN(samples), dst); n != size || err != nil {
					b.Errorf("%d bytes, %v", n, err)
					return
				}
			}
		})
	}
	readers.Wait()
}

// BenchmarkOpen opens a tree of 10,000 files, with an inspection of each and with a saved index.
func BenchmarkOpen(b *testing.B) {
	root, _ := many(b, 10_000, 10)
	for name, settings := range map[string]source.Settings{"every file": nil, "labels": {"labels": "folders"},
		"glob": {"glob": "**/*.jpg"}, "index": {"index": root + ".index"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s, err := open(root, settings)
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}
