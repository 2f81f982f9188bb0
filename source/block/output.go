package block

import (
	"context"
	"io"
	"path/filepath"

	"github.com/stocached/stocached/source"
)

// output is where a Writer writes: a local folder, or a bucket.
type output interface {
	name() string // of the complete dataset
	// place returns where the files of the incomplete dataset are.
	place() (*source.Place, string)
	// begin checks that the dataset is not there yet, and keeps other writers out where that is possible.
	begin(ctx context.Context, check checkFunc) error
	// left lists the files of an interrupted writer. Other files are ErrInTheWay.
	left(ctx context.Context) (names []string, err error)
	remove(ctx context.Context, name string) error
	sync() error // makes removals durable
	// create begins a file of about so many bytes.
	create(name string, bytes int64) (outputFile, error)
	finish() error  // makes the dataset appear, after all its files
	release() error // lets other writers in; it may be called several times
}

// outputFile is a file that appears, whole, with commit. The Writer uses it no more after commit or abort.
type outputFile interface {
	io.Writer
	sync() error // makes the bytes durable
	commit() error
	abort() error
}

// checkFunc is Writer.check.
type checkFunc func(ctx context.Context, place *source.Place, folder string) error

func newOutput(ctx context.Context, path string, o Options) (output, error) {
	if o.Place != nil && o.Place.Objects() != nil {
		return newBucket(ctx, path, o)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return &folder{path: path, part: path + partSuffix}, nil
}
