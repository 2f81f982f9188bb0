// Package source is where samples come from: a Source reads the samples of a dataset by index, from files of some kind.
//
// Each kind has a folder of its own; package kinds lists them, and opens a source by its settings. Every kind passes the suite of package sourcetest.
// A sample is read as the bytes that a cache holds of it (docs/spec/segment.md, Fields), so that whoever fills a cache copies nothing: fixed-size
// samples have their fields one after the other, a variable-size one of a single one-dimensional field is that field's bytes.
package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/stocached/stocached/shm"
)

// Source reads the samples of a dataset. Safe for any number of goroutines, Close included.
type Source interface {
	// Info describes the dataset. It never changes.
	Info() Info
	// Size returns how many bytes Read gives for sample i, without reading it. ErrIndex, ErrClosed, and errors of the file it lies in.
	Size(i int) (int, error)
	// Read reads sample i into dst and returns its bytes. On an error dst may hold anything.
	//
	// ErrIndex; ErrShort when dst has fewer than Size(i) bytes; ErrChanged when the files are not those any more that Info describes; ErrCorrupt when what they hold
	// cannot be; ErrClosed; the cause of ctx when it ends before the read begins, or while it waits; else the error of the system call, with the file's name.
	Read(ctx context.Context, i int, dst []byte) (int, error)
	// Where says which file, and where in it, a sample comes from, for messages. "" for an index that is none.
	Where(i int) string
	// Close waits for reads under way and frees what the source holds. Later calls return ErrClosed; a second Close does nothing.
	Close() error
}

// Blocks is what a source can do besides whose samples lie together in blocks, so that one large read gives many of them: ask for it by a type assertion.
// Samples are in the order of their blocks. Safe for any number of goroutines.
type Blocks interface {
	Source
	// Blocks returns how many blocks there are, at least 1.
	Blocks() int
	// BlockOf returns the block that sample i lies in. -1 for an index that is none.
	BlockOf(i int) int
	// Block returns the samples of block b: n of them from first on. 0, 0 for a block that is none.
	Block(b int) (first, n int)
	// ReadBlock reads block b at once and calls each for its samples, in order, on the caller's goroutine; sample is valid during the call, and what is in it is what
	// Read gives. It ends at the first error of each, and returns it. Errors as Read, ErrIndex for a block that is none; a damaged sample ends it with ErrCorrupt
	// behind the samples before it: read the others one by one.
	ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error
}

// Info describes the dataset of a source.
type Info struct {
	Kind    string     // of the source
	Samples int        // of the dataset, at least 1
	Schema  shm.Schema // of a sample
	// Fingerprint names this very data, at most 64 bytes: it differs when a file is added, removed or changed, and is the same for the same files each time.
	Fingerprint string
	Notes       []Note // what else an operator may want to know, such as the names of classes
}

// Note is a line about a dataset.
type Note struct{ Name, Text string }

// Errors of sources, for errors.Is; their texts have the file, the numbers and the next step.
var (
	ErrIndex   = errors.New("no such sample")
	ErrShort   = errors.New("the buffer is too short")
	ErrChanged = errors.New("the data has changed since the source was opened")
	ErrCorrupt = errors.New("the data is damaged")
	ErrClosed  = errors.New("the source is closed")
	ErrInvalid = errors.New("invalid source")
)

// CheckRead is what every Read begins with: ErrIndex, ErrShort, the cause of ctx.
func CheckRead(ctx context.Context, i, samples, size int, dst []byte) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case i < 0 || i >= samples:
		return BadIndex(i, samples)
	case len(dst) < size:
		return fmt.Errorf("%w: sample %d has %d bytes, the buffer %d", ErrShort, i, size, len(dst))
	}
	return nil
}

// BadIndex is ErrIndex with the numbers.
func BadIndex(i, samples int) error {
	return fmt.Errorf("%w: index %d is not in 0..%d", ErrIndex, i, samples-1)
}
