package wrap

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/stocached/stocached/source"
)

// Changes counts the reads of one source, and notes whether its data has changed.
type Changes struct {
	*Counts
	first atomic.Pointer[string]
}

// Watch counts the reads of a source in c, and notes the first of them that finds changed data. Around the source
// itself it counts each try. Around Retry and the other wrappers it counts what a reader sees.
func Watch(s source.Source, c *Changes) source.Source { return through(s, c) }

// Changed returns the error of the first read that found changed data; "": none did.
func (c *Changes) Changed() string {
	if text := c.first.Load(); text != nil {
		return *text
	}
	return ""
}

func (c *Changes) pass(ctx context.Context, closing <-chan struct{}, r read) (int, error) {
	n, err := c.Counts.pass(ctx, closing, r)
	if errors.Is(err, source.ErrChanged) {
		text := err.Error()
		c.first.CompareAndSwap(nil, &text)
	}
	return n, err
}
