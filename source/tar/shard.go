package tar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/stocached/stocached/source"
)

// shard is an archive and its index.
type shard struct {
	path   string
	place  *source.Place
	index  *index
	in     *kept // memory of the index
	made   bool  // the index was made by this open
	taken  bool  // the index was read from beside the shard, an object
	put    bool  // the index was written there
	doubt  error // why a kept index was not used
	unkept error // why the new index could not be kept
}

// openShard returns a shard with its index: a valid kept one, else for an object the one beside it, else a
// new one. It keeps the index if possible; not of an object without a tag.
func openShard(ctx context.Context, place *source.Place, path, setting string) (*shard, error) {
	stamp, err := place.Stamp(ctx, path)
	if err != nil {
		return nil, err
	}
	where, err := places(setting, path)
	if err != nil {
		return nil, err
	}
	s, object := &shard{path: path, place: place}, place.Objects() != nil
	if object && stamp.ModifiedNs == 0 { // nothing tells whether a kept index is of this state of the shard
		where, setting = nil, noIndex
	}
	found := s.find(where, stamp)
	if object && setting != noIndex && (!found || setting == besideShards) {
		x, data, err := s.read(ctx, stamp)
		if err == nil {
			if s.doubt = nil; !found {
				s.taken = true
				s.keep(x, data, where)
			}
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.doubt = fmt.Errorf("%s: %w", path+indexSuffix, err)
		}
	}
	if !found {
		if err := s.make(ctx, where); err != nil {
			return nil, err
		}
	}
	if object && setting == besideShards {
		return s, s.write(ctx)
	}
	return s, nil
}

// find takes the first valid index of these files.
func (s *shard) find(where []string, stamp source.Stamp) (found bool) {
	for _, file := range where {
		var err error
		if s.index, s.in, err = load(file, s.path, stamp); err == nil {
			s.doubt = nil
			return true
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.doubt = fmt.Errorf("%s: %w", file, err)
		}
	}
	return false
}

// read reads the index that lies beside the shard, an object. Errors: fs.ErrNotExist, errStale,
// ErrCorrupt, those of the objects.
func (s *shard) read(ctx context.Context, stamp source.Stamp) (*index, []byte, error) {
	f, err := s.place.Open(ctx, s.path+indexSuffix)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// Each record of an index has a header in the shard, which is larger.
	if most := stamp.Bytes + headerBytes; f.Stamp.Bytes > most {
		return nil, nil, fmt.Errorf("%w: it has %d bytes, and an index of this shard has at most %d", source.ErrCorrupt,
			f.Stamp.Bytes, most)
	}
	data := make([]byte, f.Stamp.Bytes)
	if err := f.ReadAt(ctx, data, 0); err != nil {
		return nil, nil, err
	}
	x, err := decodeIndex(data, stamp)
	return x, data, err
}

// write writes the index beside the shard, an object.
func (s *shard) write(ctx context.Context) error {
	err := s.place.Objects().(source.Writable).Put(ctx, s.path+indexSuffix, s.in.bytes)
	if err != nil {
		if _, _, late := s.read(ctx, s.index.stamp); late == nil { // another process has written the same
			return nil
		}
		return fmt.Errorf("index: %s: cannot write beside the shard: %w", besideShards, err)
	}
	s.put = true
	return nil
}

// make makes the index of the shard.
func (s *shard) make(ctx context.Context, where []string) error {
	f, err := s.place.Open(ctx, s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := walk(ctx, f)
	if err != nil {
		return err
	}
	data := b.encode()
	x, err := decodeIndex(data, f.Stamp)
	if err != nil {
		return fmt.Errorf("%s: the new index is invalid: %w", s.path, err)
	}
	s.made = true
	s.keep(x, data, where)
	return nil
}

// keep uses an index, and writes it to the first file that it can.
func (s *shard) keep(x *index, data []byte, where []string) {
	s.index, s.in = x, &kept{bytes: data}
	for _, place := range where {
		err := save(place, data)
		if err == nil {
			s.unkept = s.remap(place)
			return
		}
		s.unkept = err
		if errors.Is(err, errBusy) {
			return // the other process keeps the same index
		}
	}
}

// remap uses the new index file instead of the memory of the new index, which becomes free.
func (s *shard) remap(place string) error {
	x, in, err := load(place, s.path, s.index.stamp)
	if err != nil {
		return fmt.Errorf("%s: cannot read the new index: %w", place, err)
	}
	s.index, s.in = x, in
	return nil
}

// open opens the archive. It returns ErrChanged when the archive has changed since its index was
// made.
func (s *shard) open() (*source.File, error) { return s.place.OpenAs(s.path, s.index.stamp) }
