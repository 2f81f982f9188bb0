// Package source says where samples come from: a Source reads the samples of a dataset by index,
// from files of some kind.
//
// Each kind has its own folder. Package kinds lists them, and opens a source by its settings. All
// kinds pass the tests of package sourcetest. Read returns a sample in the form that a cache holds
// (docs/spec/segment.md, Fields), so that a fill copies nothing. A fixed-size sample has its fields
// one after the other. A variable-size sample with a single one-dimensional field is the bytes of
// that field.
package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/stocached/stocached/shm"
)

// Source reads the samples of a dataset. It is safe for concurrent use, Close too.
type Source interface {
	// Info describes the dataset. The result never changes.
	Info() Info
	// Size returns the bytes of sample i without reading it. Errors: ErrIndex, ErrClosed, errors of
	// its file.
	Size(i int) (int, error)
	// Read reads sample i into dst and returns its bytes. After an error dst may hold anything.
	//
	// Errors: ErrIndex; ErrShort when dst has fewer than Size(i) bytes; ErrChanged when the files
	// have changed since Info; ErrCorrupt for damaged content; ErrClosed; the cause of ctx when it
	// ends before the read begins or while Read waits; else the error of the system call, with the
	// file's name.
	Read(ctx context.Context, i int, dst []byte) (int, error)
	// Where returns the file of a sample, and the place in it, for messages. It returns "" for an
	// invalid index.
	Where(i int) string
	// Close waits for inflight reads and frees all resources. Later calls return ErrClosed; a
	// second Close does nothing.
	Close() error
}

// Spare is how much longer than a sample dst should be: with so many more bytes, which may change, a Read
// of a source with tiers (package tier) copies nothing.
const Spare = 32

// Blocks is a Source whose samples lie together in blocks, so that one large read gives many of
// them. A type assertion tells whether a Source has it. Samples are in the order of their blocks.
// It is safe for concurrent use.
type Blocks interface {
	Source
	Layout
	// ReadBlock reads block b at once and calls each for its samples, in order, in the caller's
	// goroutine. sample has the same bytes as from Read, and is valid during the call. The first
	// error of each ends ReadBlock and is returned. Other errors are those of Read, and ErrIndex
	// for an invalid block. A damaged sample ends it with ErrCorrupt after the samples before it;
	// the caller may read the others one by one.
	ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error
}

// Layout says which samples lie together in blocks.
type Layout interface {
	// Blocks returns the number of blocks, at least 1.
	Blocks() int
	// BlockOf returns the block of sample i; -1 for an invalid index.
	BlockOf(i int) int
	// Block returns the samples of block b: n of them from first on; 0, 0 for an invalid block.
	Block(b int) (first, n int)
}

// Info describes the dataset of a source.
type Info struct {
	Kind    string     // kind of the source
	Samples int        // samples of the dataset, at least 1
	Schema  shm.Schema // schema of a sample
	// Fingerprint names the data in at most 64 bytes. It changes when a file is added, removed or
	// changed, and is otherwise the same each time.
	Fingerprint string
	// State goes with Fingerprint on this machine, as FingerprintOf says; "": nothing does.
	State string
	// Decode says how clients make pictures of the files in the first field, as shm.Header.Decode does.
	Decode string
	// Programs: no files have the samples, programs load them. Read gives ErrLoad.
	Programs bool
	// Formats: programs decode files of formats that the source does not decode. Read gives a KindError.
	Formats bool
	Notes   []Note // further notes for an operator, such as the names of classes
	// Traffic counts the requests to a server; nil: the samples come from local files.
	Traffic *Traffic
}

// Local names the data on this machine: by it a cache or a file that stayed here is known again. Machines that share
// samples compare the Fingerprint.
func (i *Info) Local() string {
	if i.State == "" {
		return i.Fingerprint
	}
	return i.Fingerprint + "." + i.State
}

// ClassesNote is the name of the note that has the names of labels by their number, in JSON.
const ClassesNote = "classes"

// Note is a line about a dataset.
type Note struct {
	Name, Text string
	Advice     bool // the operator should do what it says; a server logs it
	Data       bool // programs that open the data get it, too
}

// Errors of sources, for errors.Is. Their texts have the file, the numbers and the next step.
var (
	ErrIndex   = errors.New("no such sample")
	ErrShort   = errors.New("the buffer is too short")
	ErrChanged = errors.New("the data has changed since the source was opened")
	ErrCorrupt = errors.New("the data is damaged")
	ErrClosed  = errors.New("the source is closed")
	ErrInvalid = errors.New("invalid source")
	// ErrDecode: the bytes are those of the file, and no picture. It wraps ErrCorrupt.
	ErrDecode = fmt.Errorf("%w", ErrCorrupt)
	// ErrLoad: the sample comes from programs, and none has loaded it yet.
	ErrLoad = errors.New("no program has loaded it yet; load it yourself, such as with CachedDataset")
)

// BadError is the error of a sample that is damaged and that clients may leave out. It wraps ErrDecode.
type BadError struct{ Where, Reason string }

func (e *BadError) Error() string { return e.Where + ": " + e.Reason }

// Unwrap returns ErrDecode.
func (e *BadError) Unwrap() error { return ErrDecode }

// KindError is the error of a file of a format that a source of pictures does not decode. Programs may. It wraps ErrDecode.
type KindError struct {
	Where, Reason string
	Unknown       bool // the format is none of those that Reason can name: most such files are no pictures
	MayLeaveOut   bool // clients may leave out a file that no program decodes
}

func (e *KindError) Error() string { return e.Where + " does not decode: " + e.Reason }

// Unwrap returns ErrDecode.
func (e *KindError) Unwrap() error { return ErrDecode }

// IsOtherKind says whether err is that of a picture of a known format that a server leaves to Python clients.
func IsOtherKind(err error) bool {
	var kind *KindError
	return errors.As(err, &kind) && !kind.Unknown
}

// CheckRead makes the first checks of each Read. Errors: ErrIndex, ErrShort, the cause of ctx.
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

// BadIndex returns ErrIndex with the numbers.
func BadIndex(i, samples int) error {
	return fmt.Errorf("%w: index %d is not in 0..%d", ErrIndex, i, samples-1)
}
