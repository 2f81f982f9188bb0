package decode

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that bytes of the shared memory that change while a process works end neither the server nor
// the process, and that later pictures are right. Only who may read and write the memory of the server
// can do that: docs/spec/decode.md.
func TestHelperMemoryThatChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("not under the race detector: these are races")
	}
	all, err := openHelpers(sourcetest.Helper(t, "../.."))
	fatal.If(t, err)
	defer all.close()
	var files [][]byte
	for _, name := range []string{"420.jpg", "progressive.jpg", "cmyk.jpg", "exif6.jpg", "500x375.jpg"} {
		file := fatal.Value(os.ReadFile(filepath.Join("testdata", name)))(t)
		files = append(files, file)
	}
	o := options{Resize: []int{40, 50}, Layout: "hwc", Fit: "stretch", MaxPixels: 1 << 22}
	picture := func(file []byte) ([]byte, error) {
		dst := make([]byte, 3*40*50)
		return dst, all.picture(context.Background(), o.request(), file, 16<<20, dst)
	}
	pictures := func(n int, each func(k int, pixels []byte, err error)) {
		var readers sync.WaitGroup
		for range lanes * len(all.seats) {
			readers.Go(func() {
				for range n {
					k := rand.IntN(len(files))
					pixels, err := picture(files[k])
					each(k, pixels, err)
				}
			})
		}
		readers.Wait()
	}
	want := make([][]byte, len(files))
	for k, file := range files {
		if want[k], err = picture(file); err != nil {
			t.Fatal(err)
		}
	}
	pictures(20, func(k int, _ []byte, err error) { // so that every lane has memory
		expect.NoError(t, err)
	})
	var maps [][]byte
	var before []*process
	for k := range all.seats {
		p := all.seats[k].process
		before = append(before, p)
		for _, l := range p.lanes {
			m, err := unix.Mmap(int(l.memory.Fd()), 0, len(l.shared), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			fatal.If(t, err)
			defer unix.Munmap(m)
			maps = append(maps, m)
		}
	}
	var hostile sync.WaitGroup
	done := make(chan struct{})
	hostile.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, m := range maps {
				at := rand.IntN(700) // a place in a header
				if rand.IntN(4) == 0 {
					at = rand.IntN(100 << 10)
				}
				m[at] = byte(rand.Uint32())
			}
		}
	})
	damaged := 0
	var mu sync.Mutex
	pictures(300, func(k int, pixels []byte, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil || !bytes.Equal(pixels, want[k]) {
			damaged++
		}
		if lost := new(lostError); errors.As(err, &lost) {
			t.Error(err)
		}
	})
	close(done)
	hostile.Wait()
	t.Logf("%d pictures were damaged", damaged)
	if damaged == 0 {
		t.Error("no picture was damaged, so nothing was tested")
	}
	pictures(20, func(k int, pixels []byte, err error) {
		if err != nil || !bytes.Equal(pixels, want[k]) {
			t.Errorf("file %d: %v, or other pixels", k, err)
		}
	})
	for k := range all.seats {
		expect.Equal(t, all.seats[k].process, before[k], "the process of seat %d", k)
	}
}
