package source

import (
	"context"
	"sync/atomic"
)

// Retries are what a source tries again, while it opens and afterwards. A nil *Retries takes no notice.
type Retries struct {
	reads atomic.Int64
	tell  func(err error)
}

// NewRetries returns Retries that call tell for each try that failed and that is followed by another.
func NewRetries(tell func(err error)) *Retries { return &Retries{tell: tell} }

// Reads returns how many reads have failed and will be tried again.
func (r *Retries) Reads() int64 { return r.reads.Load() }

// Begin counts a read that is tried again, until End.
func (r *Retries) Begin() {
	if r != nil {
		r.reads.Add(1)
	}
}

// End counts the end of such a read.
func (r *Retries) End() {
	if r != nil {
		r.reads.Add(-1)
	}
}

// Failed takes notice of a try that failed and is followed by another.
func (r *Retries) Failed(err error) {
	if r != nil {
		r.tell(err)
	}
}

type retries struct{}

// WithRetries returns the context in which a source opens that reports to r.
func WithRetries(ctx context.Context, r *Retries) context.Context {
	return context.WithValue(ctx, retries{}, r)
}

// RetriesOf returns the Retries of a context; nil: it has none.
func RetriesOf(ctx context.Context) *Retries {
	r, _ := ctx.Value(retries{}).(*Retries)
	return r
}
