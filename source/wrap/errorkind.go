package wrap

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// ErrorKind is a kind of read errors, for counters. There are few kinds, one for each remedy.
type ErrorKind string

// Kinds of errors.
const (
	KindCancelled   ErrorKind = "cancelled"   // the reader's context ended
	KindClosed      ErrorKind = "closed"      // ErrClosed
	KindIndex       ErrorKind = "index"       // ErrIndex
	KindShort       ErrorKind = "short"       // ErrShort
	KindChanged     ErrorKind = "changed"     // ErrChanged
	KindCorrupt     ErrorKind = "corrupt"     // ErrCorrupt
	KindMissing     ErrorKind = "missing"     // no such file
	KindDenied      ErrorKind = "denied"      // no permission to read the file
	KindDescriptors ErrorKind = "descriptors" // too many open files, in the process or in the system
	KindTimeout     ErrorKind = "timeout"     // of the device or the network
	KindIO          ErrorKind = "io"          // EIO and the like
	KindOther       ErrorKind = "other"
)

// errorKinds are in the order of the checks: an error may wrap several.
var errorKinds = []struct {
	kind ErrorKind
	is   []error
}{
	{KindCancelled, []error{context.Canceled, context.DeadlineExceeded}},
	{KindClosed, []error{source.ErrClosed}},
	{KindIndex, []error{source.ErrIndex}},
	{KindShort, []error{source.ErrShort}},
	{KindChanged, []error{source.ErrChanged}},
	{KindCorrupt, []error{source.ErrCorrupt}},
	{KindMissing, []error{fs.ErrNotExist}},
	{KindDenied, []error{fs.ErrPermission}},
	{KindDescriptors, []error{unix.EMFILE, unix.ENFILE}},
	{KindTimeout, []error{os.ErrDeadlineExceeded, unix.ETIMEDOUT}},
	{KindIO, []error{unix.EIO, unix.EREMOTEIO, unix.ESTALE}},
	{KindOther, nil},
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
