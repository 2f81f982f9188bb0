package wrap

import (
	"context"
	"time"

	"github.com/stocached/stocached/source"
)

// KindOf returns the kind of an error of a read with ctx.
func KindOf(ctx context.Context, err error) ErrorKind { return errorKinds[kindIndex(ctx, err)].kind }

// LateRate is Rate with one head, whose last timer was late.
func LateRate(s source.Source, o RateOptions, late time.Duration) source.Source {
	d := &device{RateOptions: o, heads: make(chan head, 1)}
	d.heads <- head{late: late}
	return through(s, d)
}

// Together returns the bytes of all sources with Total.
func Together() int64 { return together.Load() }
