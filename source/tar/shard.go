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
	doubt  error // why a kept index was not used
	unkept error // why the new index could not be kept
}

// openShard returns a shard with its index: a valid kept one, else a new one, which it keeps if
// possible.
func openShard(ctx context.Context, place *source.Place, path, setting string) (*shard, error) {
	stamp, err := place.Stamp(ctx, path)
	if err != nil {
		return nil, err
	}
	where, err := places(setting, path)
	if err != nil {
		return nil, err
	}
	s := &shard{path: path, place: place}
	for _, file := range where {
		if s.index, s.in, err = load(file, stamp); err == nil {
			s.doubt = nil
			return s, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.doubt = fmt.Errorf("%s: %w", file, err)
		}
	}
	return s, s.make(ctx, where)
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
	if s.index, err = decodeIndex(data, f.Stamp); err != nil {
		return fmt.Errorf("%s: the new index is invalid: %w", s.path, err)
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
			return nil // the other process keeps the same index
		}
	}
	return nil
}

// remap uses the new index file instead of the memory of the new index, which becomes free.
func (s *shard) remap(place string) error {
	x, in, err := load(place, s.index.stamp)
	if err != nil {
		return fmt.Errorf("%s: cannot read the new index: %w", place, err)
	}
	s.index, s.in = x, in
	return nil
}

// open opens the archive. It returns ErrChanged when the archive has changed since its index was
// made.
func (s *shard) open() (*source.File, error) { return s.place.OpenAs(s.path, s.index.stamp) }
