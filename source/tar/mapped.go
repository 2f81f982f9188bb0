package tar

import (
	"context"
	"errors"
	"fmt"

	"github.com/stocached/stocached/source"
)

// errForeign: somebody who can write no shard may have written the index.
var errForeign = errors.New("the index is not trusted")

// kept is an index file in memory: a mapping, or its bytes if it cannot be mapped or is in no local file.
// nil holds nothing.
type kept struct {
	file  *source.File // closed: a mapping does not need it, and thousands of shards would need as many descriptors
	pages *source.Map
	bytes []byte
}

// openKept maps the whole index of a shard. Errors: ErrCorrupt for a file that is too short, errForeign, those of the system.
func openKept(path, shard string) (*kept, error) {
	f, err := source.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Stamp.Bytes < headerBytes {
		return nil, fmt.Errorf("%w: %s is not an index of a tar shard", source.ErrCorrupt, path)
	}
	if !f.IsTrusted(shard) {
		return nil, fmt.Errorf("%w: any user, or one other than root and the owner of the shard, may have written %s", errForeign, path)
	}
	k := &kept{file: f}
	if k.pages, err = f.Map(context.Background(), 0, int(f.Stamp.Bytes)); err == nil {
		k.bytes = k.pages.Bytes
		return k, nil
	}
	k.bytes = make([]byte, f.Stamp.Bytes) // too many mappings, or a file system without them
	return k, f.ReadAt(context.Background(), k.bytes, 0)
}

// look calls work, which reads the index. It returns ErrChanged if the file was truncated or its
// disk fails. (Writers replace indexes by a rename.)
func (k *kept) look(work func() error) (err error) {
	if k == nil || k.pages == nil {
		return work()
	}
	if fault := k.file.Look(func() { err = work() }); fault != nil {
		return fault
	}
	return err
}

// forget gives the memory back to the kernel until the next read.
func (k *kept) forget() {
	if k != nil && k.pages != nil {
		k.pages.Forget()
	}
}

// close ends the mapping. No call of look may be running.
func (k *kept) close() {
	if k != nil {
		_ = k.pages.Close() // munmap of an existing mapping does not fail
	}
}
