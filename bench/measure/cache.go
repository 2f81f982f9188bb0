package measure

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/stocached/stocached/client"
)

// Dir makes a directory for this run on /dev/shm, for caches and the bare files they are compared
// with.
func Dir() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("/dev/shm", "stocached-bench-")
	if err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir) }, nil
}

// options returns those of a cache of this size. It is named, because a memfd may have other pages
// than the tmpfs of the bare files.
func (z Size) options(dir string) client.Options {
	return client.Options{Dir: dir, Samples: z.Samples, SampleBytes: z.Bytes}
}

// fresh makes an empty cache and the function that removes it.
func fresh(dir, name string, o client.Options) (*client.Cache, func() error, error) {
	o.Dir = dir
	c, err := client.Create(name, o)
	if err != nil {
		return nil, nil, err
	}
	return c, func() error {
		if err := client.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
		return c.Close()
	}, nil
}

// filled makes a cache with all samples, sample i in slot i.
func (z Size) filled(dir, name string) (*client.Cache, func() error, error) {
	c, remove, err := fresh(dir, name, z.options(dir))
	if err != nil {
		return nil, nil, err
	}
	data := z.data()
	for i := range z.Samples {
		p := data[i%len(data)]
		binary.LittleEndian.PutUint64(p, uint64(i))
		if r, err := c.Set(i, p, 0); r != client.Stored || err != nil {
			return nil, nil, fmt.Errorf("filling: sample %d of %d: %v %w", i, z.Samples, r, err)
		}
	}
	return c, remove, nil
}

// Filled makes a cache with all samples for other processes, which attach by its path.
func Filled(z Size, dir string) (path string, remove func() error, err error) {
	c, _, err := z.filled(dir, "filled")
	if err != nil {
		return "", nil, err
	}
	path = c.Info().Path
	return path, func() error { return client.Remove(path) }, c.Close()
}

// data returns some samples to store: several, as from a loader that decodes one after the other,
// and few enough for the processor's cache.
func (z Size) data() [][]byte {
	rng := rand.NewChaCha8([32]byte{})
	data := make([][]byte, min(16, max(1, 4<<20/z.Bytes)))
	for i := range data {
		data[i] = make([]byte, z.Bytes)
		rng.Read(data[i])
	}
	return data
}

// order returns a random order of all samples, the same one every time.
func (z Size) order() []int { return rand.New(rand.NewPCG(1, 2)).Perm(z.Samples) }

// payload returns the samples of a filled cache as one array, for a bare loop over the same pages.
// It relies on sample i being in slot i and on slots without padding, and checks both at the ends.
func (z Size) payload(c *client.Cache) ([]byte, error) {
	first, _, err := c.View(0)
	if err != nil {
		return nil, err
	}
	last, hit, err := c.View(z.Samples - 1)
	if err != nil || !hit {
		return nil, fmt.Errorf("sample %d is not in the cache: %w", z.Samples-1, err)
	}
	all := unsafe.Slice(unsafe.SliceData(first), z.Samples*z.Bytes)
	if unsafe.SliceData(all[(z.Samples-1)*z.Bytes:]) != unsafe.SliceData(last) {
		return nil, fmt.Errorf("sample %d is not in slot %d", z.Samples-1, z.Samples-1)
	}
	return all, nil
}
