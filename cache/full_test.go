package cache_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// After another process fills the tmpfs, fills end with FULL and never with a signal. Stored
// samples can be read, no slot is lost, and sets work again when space is free.
func TestFullFileSystem(t *testing.T) {
	const size, first = 256 << 10, 8 // a whole huge page, so that all allocated pages are in use, whatever their size
	for name, o := range map[string]shm.Options{
		"slots": {Samples: 40, SampleBytes: size},
		"arena": {Samples: 40, SampleBytes: size, Variable: true, Limit: 20 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			o.Name, o.Dir = "test", tmpfs.Mount(t, t.TempDir(), "size=32m")
			seg := mapped(t, o)
			c := attach(t, seg)
			for i := range first {
				set(t, c, i, payload(i, 0, size), 0, cache.Stored)
			}
			filler := filepath.Join(o.Dir, "filler")
			f, err := os.Create(filler)
			fatal.If(t, err)
			defer f.Close()
			for block := bytes.Repeat([]byte{1}, 1<<20); err == nil; {
				_, err = f.Write(block)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			if err := f.Truncate(sizeOf(t, f) - 100<<10); err != nil { // space for a part of a sample
				t.Fatal(err)
			}
			for i := first; i < 20; i++ {
				set(t, c, i, payload(i, 0, size), 0, cache.Full)
				if k, r, err := c.Claim(i, size, 0); k != nil || r != cache.Full || err != nil {
					t.Fatalf("claim: %v, %v", r, err)
				}
				wantMiss(t, c, i)
				checkSound(t, seg)
			}
			for i := range first {
				wantSample(t, c, i, payload(i, 0, size))
				set(t, c, i, payload(i, 1, size), cache.Overwrite, cache.Stored) // into allocated pages
				wantSample(t, c, i, payload(i, 1, size))
			}
			fatal.If(t, os.Remove(filler))
			f.Close()
			for i := first; i < 40; i++ {
				set(t, c, i, payload(i, 0, size), 0, cache.Stored)
				wantSample(t, c, i, payload(i, 0, size))
			}
			if s := stats(t, c); s.Ready != 40 || s.Full != 2*(20-first) || s.Aborted != s.Full || s.ArenaLostBytes != 0 {
				t.Errorf("%+v", s)
			}
			checkSound(t, seg)
		})
	}
}

func sizeOf(t *testing.T, f *os.File) int64 {
	t.Helper()
	info := fatal.Value(f.Stat())(t)
	return info.Size()
}
