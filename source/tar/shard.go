package tar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/stocached/stocached/source"
)

// shard is an archive and where its samples lie.
type shard struct {
	path   string
	index  *index
	in     *kept // what the index lies in
	made   bool  // in this open
	doubt  error // why a kept index was not used
	unkept error // why a new one could not be kept
}

// openShard returns a shard with its index: a kept one that verifies, else a new one, which it keeps if it can.
func openShard(ctx context.Context, path, setting string) (*shard, error) {
	stamp, err := source.StampOf(path)
	if err != nil {
		return nil, err
	}
	where, err := places(setting, path)
	if err != nil {
		return nil, err
	}
	s := &shard{path: path}
	for _, place := range where {
		if s.index, s.in, err = load(place, stamp); err == nil {
			s.doubt = nil
			return s, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.doubt = fmt.Errorf("%s: %w", place, err)
		}
	}
	return s, s.make(ctx, where)
}

// make walks the shard.
func (s *shard) make(ctx context.Context, where []string) error {
	f, err := source.OpenFile(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := walk(ctx, f)
	if err != nil {
		return err
	}
	data := b.encode()
	if s.index, err = decodeIndex(data, f.Stamp); err != nil {
		return fmt.Errorf("%s: the index that was just made does not verify: %w", s.path, err)
	}
	s.made = true
	for _, place := range where {
		err = save(place, data)
		if err == nil {
			s.unkept = s.remap(place)
			return nil
		}
		s.unkept = err
		if errors.Is(err, errBusy) {
			return nil // it keeps the same as we would
		}
	}
	return nil
}

// remap uses the file that was just written instead of the memory that it was made in, which is then free.
func (s *shard) remap(place string) error {
	x, in, err := load(place, s.index.stamp)
	if err != nil {
		return fmt.Errorf("%s: just written, and %w", place, err)
	}
	s.index, s.in = x, in
	return nil
}

// open opens the archive. ErrChanged when it is not the one any more that the index was made of.
func (s *shard) open() (*source.File, error) {
	f, err := source.OpenFile(s.path)
	if err != nil {
		return nil, err
	}
	if err := s.index.stamp.Check(s.path, f.Stamp); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
