package tar

import (
	"context"
	"fmt"

	"github.com/stocached/stocached/source"
)

// kept is a kept index in memory: a mapping of its file, or a copy where there can be none. nil: an index that is in no file.
type kept struct {
	file  *source.File // closed: the mapping does not need it, and thousands of shards must not take as many descriptors
	pages *source.Map
	bytes []byte
}

// openKept maps a whole file. ErrCorrupt when it is too short for an index, and errors of the system.
func openKept(path string) (*kept, error) {
	f, err := source.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Stamp.Bytes < headerBytes {
		return nil, fmt.Errorf("%w: %s is no index of a tar shard", source.ErrCorrupt, path)
	}
	k := &kept{file: f}
	if k.pages, err = f.Map(0, int(f.Stamp.Bytes)); err == nil {
		k.bytes = k.pages.Bytes
		return k, nil
	}
	k.bytes = make([]byte, f.Stamp.Bytes) // too many mappings, or a file system without them
	return k, f.ReadAt(context.Background(), k.bytes, 0)
}

// look calls work, which looks at the index. ErrChanged when somebody cut its file meanwhile: indexes are replaced by renaming, but a disk may fail.
func (k *kept) look(work func() error) (err error) {
	if k == nil || k.pages == nil {
		return work()
	}
	if fault := k.file.Look(func() { err = work() }); fault != nil {
		return fault
	}
	return err
}

// forget gives the memory back until somebody looks again.
func (k *kept) forget() {
	if k != nil && k.pages != nil {
		k.pages.Forget()
	}
}

// close ends the mapping. Nobody may look any more.
func (k *kept) close() {
	if k != nil {
		_ = k.pages.Close() // unmapping what was mapped does not fail
	}
}
