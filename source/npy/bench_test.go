package npy_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRead reads random rows in the page cache with 2 goroutines. bare is pread into a reused
// buffer, the fastest possible read.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4 << 10, 150_528} {
		rows := (256 << 20) / size
		path := filepath.Join(b.TempDir(), "x.npy")
		header := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }\n", rows, size)
		out, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		w, row := bufio.NewWriterSize(out, 1<<20), make([]byte, size)
		w.Write(file(header, 0))
		for k := range rows {
			row[0] = byte(k)
			w.Write(row)
		}
		if err := w.Flush(); err != nil {
			b.Fatal(err)
		}
		s, err := open(path)
		if err != nil {
			b.Fatal(err)
		}
		offset := int64(len(file(header, 0)))
		for _, c := range []struct {
			name string
			read func(i int, dst []byte) (int, error)
		}{
			{"bare", func(i int, dst []byte) (int, error) { return unix.Pread(int(out.Fd()), dst, offset+int64(i*size)) }},
			{"npy", func(i int, dst []byte) (int, error) { return s.Read(context.Background(), i, dst) }},
		} {
			b.Run(strconv.Itoa(size)+"/"+c.name, func(b *testing.B) { reading(b, 2, rows, size, c.read) })
		}
		s.Close()
		out.Close()
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
