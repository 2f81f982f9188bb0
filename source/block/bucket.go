package block

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/stocached/stocached/source"
)

// bucket is the output of a bucket. An object appears only whole, and dataset.json is the last one, so the
// files of an incomplete dataset have their final names. There is no lock: two writers of the same data
// write the same bytes, and of two others the second finds dataset.json and fails.
type bucket struct {
	ctx     context.Context // of the Writer
	at      *source.Place
	objects source.Writable
	path    string // without a slash at the end
	restart bool
}

func newBucket(ctx context.Context, path string, o Options) (output, error) {
	objects, ok := o.Place.Objects().(source.Writable)
	if !ok {
		return nil, fmt.Errorf("%w: %s: stocached only reads such addresses; write to a bucket or a local folder",
			source.ErrInvalid, path)
	}
	return &bucket{ctx, o.Place, objects, strings.TrimRight(path, "/"), o.Restart}, nil
}

func (o *bucket) name() string                   { return o.path }
func (o *bucket) place() (*source.Place, string) { return o.at, o.path }

func (o *bucket) begin(ctx context.Context, check checkFunc) error {
	if err := check(ctx, o.at, o.path); err != nil {
		return err
	}
	_, err := o.objects.Stamp(ctx, o.path+"/"+datasetName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: %s/%s is no dataset in block files; write elsewhere", ErrInTheWay, o.path, datasetName)
}

func (o *bucket) left(ctx context.Context) (names []string, err error) {
	err = o.objects.List(ctx, o.path+"/", func(object string, _ source.Stamp) error {
		name := strings.TrimPrefix(object, o.path+"/")
		if source.StandsForFolder(object) {
			return nil
		}
		if !ours(name) {
			return fmt.Errorf("%w: %s is not of an interrupted writer; write elsewhere", ErrInTheWay, object)
		}
		names = append(names, name)
		return nil
	})
	return names, err
}

func (o *bucket) remove(ctx context.Context, name string) error {
	return o.objects.Remove(ctx, o.path+"/"+name)
}

func (o *bucket) sync() error { return nil }

func (o *bucket) create(name string, bytes int64) (outputFile, error) {
	u, err := o.objects.Create(o.ctx, o.path+"/"+name, bytes, !o.restart)
	if err != nil {
		return nil, err
	}
	return object{u, name == datasetName}, nil
}

// object is an outputFile.
type object struct {
	source.Upload
	only bool // the object may not exist yet
}

func (f object) sync() error { return nil }

func (f object) commit() error {
	err := f.Commit(f.only)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: another writer was faster: %w", ErrInTheWay, err)
	}
	return err
}

func (f object) abort() error { return f.Close() }

func (o *bucket) finish() error { return nil }

func (o *bucket) release() error {
	o.at.Close()
	return nil
}
