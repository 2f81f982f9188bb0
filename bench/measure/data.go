package measure

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"

	"golang.org/x/sys/unix"
)

// Data has the files of sources, in a folder for this run on a disk. Each kind is made on first
// use, and stays in the page cache.
type Data struct {
	Dir  string
	made map[string]bool
}

// Records is a dataset: the number and the size of its samples.
type Records struct{ Samples, Bytes int }

// once makes a file or folder once, and waits until it is on the disk, so that writing it back does
// not disturb the measurements.
func (d *Data) once(name string, make func(path string) error) (path string, err error) {
	path = filepath.Join(d.Dir, name)
	if d.made[path] {
		return path, nil
	}
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return "", err
	}
	if err := errors.Join(make(path), syncDisk(d.Dir)); err != nil {
		return "", fmt.Errorf("making %s: %w", name, err)
	}
	if d.made == nil {
		d.made = map[string]bool{}
	}
	d.made[path] = true
	return path, nil
}

func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// samples passes the samples of a dataset to one, one after the other, in one buffer.
func (r Records) samples(one func(i int, sample []byte) error) error {
	sample := make([]byte, r.Bytes)
	rng := rand.NewChaCha8([32]byte{})
	rng.Read(sample)
	for i := range r.Samples {
		binary.LittleEndian.PutUint64(sample, uint64(i))
		if err := one(i, sample); err != nil {
			return err
		}
	}
	return nil
}

// raw makes a file of records.
func (d *Data) raw(r Records) (source.Settings, error) {
	path, err := d.once(fmt.Sprintf("%dx%d.raw", r.Samples, r.Bytes), func(path string) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		return errors.Join(r.samples(func(_ int, sample []byte) error {
			_, err := f.Write(sample)
			return err
		}), f.Close())
	})
	return source.Settings{"kind": "raw", "path": path, "sample_bytes": r.Bytes}, err
}

// block makes block files of the same records, with the defaults of `stocached pack`.
func (d *Data) block(r Records) (source.Settings, error) {
	path, err := d.once(fmt.Sprintf("%dx%d.block", r.Samples, r.Bytes), func(path string) error {
		schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{uint64(r.Bytes)}}},
			false)
		if err != nil {
			return err
		}
		ctx := context.Background()
		w, err := block.Create(ctx, path,
			block.Options{Schema: schema, Source: block.Origin{Kind: "bench", Fingerprint: fmt.Sprint(r)}})
		if err != nil {
			return err
		}
		if err := r.samples(func(_ int, sample []byte) error { return w.Write(sample) }); err != nil {
			return errors.Join(err, w.Close())
		}
		return w.Finish()
	})
	return source.Settings{"kind": "block", "path": path}, err
}

// filesPerFolder of a tree.
const filesPerFolder = 1000

// tree makes a tree of files of the same records.
func (d *Data) tree(r Records) (source.Settings, error) {
	path, err := d.once(fmt.Sprintf("%dx%d.dir", r.Samples, r.Bytes), func(path string) error {
		return r.samples(func(i int, sample []byte) error {
			if i%filesPerFolder == 0 {
				if err := os.MkdirAll(filepath.Dir(fileOf(path, i)), 0o755); err != nil {
					return err
				}
			}
			return os.WriteFile(fileOf(path, i), sample, 0o644)
		})
	})
	return source.Settings{"kind": "dir", "path": path}, err
}

// pictures makes a tree of copies of a picture.
func (d *Data) pictures(picture string, n int) (source.Settings, error) {
	data, err := os.ReadFile(picture)
	if err != nil {
		return nil, err
	}
	path, err := d.once(fmt.Sprintf("%d.pictures", n), func(path string) error {
		for i := range n {
			file := fileOf(path, i)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o644)); err != nil {
				return err
			}
		}
		return nil
	})
	return source.Settings{"kind": "dir", "path": path}, err
}

// fileOf returns the file of sample i. The order of the paths is that of the samples.
func fileOf(tree string, i int) string {
	return fmt.Sprintf("%s/%05d/%08d", tree, i/filesPerFolder, i)
}

// hugeBlock makes a dataset of very many small samples in block files.
func (d *Data) hugeBlock(samples int) (source.Settings, error) { return d.block(Records{samples, 16}) }

// hugeShards is the number of shards of hugeTar.
const hugeShards = 10

// hugeTar makes a dataset of very many small samples in tar shards. All shards are names of one
// file: their content does not matter, and each has its own index.
func (d *Data) hugeTar(samples int) (source.Settings, error) {
	path, err := d.once(fmt.Sprintf("%d.tars", samples), func(dir string) error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		first := filepath.Join(dir, "shard-0.tar")
		f, err := os.Create(first)
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(f, 1<<20)
		t := tar.NewWriter(w)
		sample := make([]byte, 16)
		for i := 0; i < samples/hugeShards && err == nil; i++ {
			if err = t.WriteHeader(&tar.Header{Name: fmt.Sprintf("%09d.bin", i), Mode: 0o644,
				Size: int64(len(sample))}); err == nil {
				_, err = t.Write(sample)
			}
		}
		if err := errors.Join(err, t.Close(), w.Flush(), f.Close()); err != nil {
			return err
		}
		for k := 1; k < hugeShards; k++ {
			if err := os.Link(first, filepath.Join(dir, fmt.Sprintf("shard-%d.tar", k))); err != nil {
				return err
			}
		}
		return nil
	})
	return source.Settings{"kind": "tar", "path": fmt.Sprintf("%s/shard-{0..%d}.tar", path, hugeShards-1)}, err
}
