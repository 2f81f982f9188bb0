package wrap

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// ErrorKind is a kind of read errors, for counters and alerts. There are few kinds, one for each remedy.
type ErrorKind string

// Kinds of errors. The first four are no failures of a source.
const (
	KindCancelled   ErrorKind = "cancelled"   // the reader's context ended
	KindClosed      ErrorKind = "closed"      // ErrClosed
	KindIndex       ErrorKind = "index"       // ErrIndex
	KindShort       ErrorKind = "short"       // ErrShort
	KindChanged     ErrorKind = "changed"     // ErrChanged
	KindDecode      ErrorKind = "decode"      // ErrDecode
	KindDamaged     ErrorKind = "damaged"     // ErrCorrupt
	KindMissing     ErrorKind = "missing"     // no such file
	KindDenied      ErrorKind = "denied"      // no permission to read the file
	KindDescriptors ErrorKind = "descriptors" // too many open files, in the process or in the system
	KindUnavailable ErrorKind = "unavailable" // the device, the network or the server of the source does not answer, or fails
	KindOther       ErrorKind = "other"
	// No errors of a read, but of the cache that takes the samples.
	KindMemory ErrorKind = "memory" // the cache has free places, and memory for them is short
	KindStore  ErrorKind = "store"  // the cache refuses samples that were read
)

// kindOf describes a kind.
type kindOf struct {
	kind ErrorKind
	is   []error
	ours bool // no failure of the source
	// lasts: each read of the sample fails until the data is repaired, so the failure is over when the source is
	// opened again. Other failures are over when reads succeed.
	lasts bool
	cache bool   // no error of a read
	state string // what is wrong now, if cache
	// lines of the log; "": those of a read
	begins, goesOn, ends string
}

const kinds = 14

// errorKinds are in the order of the checks: an error may wrap several.
var errorKinds = [kinds]kindOf{
	{kind: KindCancelled, is: []error{context.Canceled, context.DeadlineExceeded}, ours: true},
	{kind: KindClosed, is: []error{source.ErrClosed}, ours: true},
	{kind: KindIndex, is: []error{source.ErrIndex}, ours: true},
	{kind: KindShort, is: []error{source.ErrShort}, ours: true},
	{kind: KindChanged, is: []error{source.ErrChanged}, lasts: true},
	{kind: KindDecode, is: []error{source.ErrDecode}, lasts: true},
	{kind: KindDamaged, is: []error{source.ErrCorrupt}, lasts: true},
	{kind: KindMissing, is: []error{fs.ErrNotExist}, lasts: true},
	{kind: KindDenied, is: []error{fs.ErrPermission}},
	{kind: KindDescriptors, is: []error{unix.EMFILE, unix.ENFILE}},
	{kind: KindUnavailable, is: unreachable},
	{kind: KindMemory, cache: true, state: "memory is short", begins: "memory is short, so samples are not cached", goesOn: "memory is still short",
		ends: "memory is no longer short"},
	{kind: KindStore, cache: true, state: "samples cannot be stored", begins: "a sample was read and could not be stored",
		goesOn: "samples were read and could not be stored", ends: "no sample fails to be stored any more"},
	{kind: KindOther},
}

// indexOf returns which of errorKinds a kind is.
func indexOf(kind ErrorKind) int {
	return slices.IndexFunc(errorKinds[:], func(k kindOf) bool { return k.kind == kind })
}

// kindIndex returns which of errorKinds an error of a read with ctx is. The cause of ctx is KindCancelled.
func kindIndex(ctx context.Context, err error) int {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return 0
	}
	for k, e := range errorKinds {
		if isAny(err, e.is) {
			return k
		}
	}
	return len(errorKinds) - 1
}
