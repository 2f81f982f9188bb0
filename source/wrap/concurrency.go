package wrap

import (
	"context"
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/source"
)

// Concurrency lets at most n reads run at a time. It returns ErrInvalid unless n is at least 1.
// Other reads wait in the order in which they came, until their context ends.
func Concurrency(s source.Source, n int) (source.Source, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: concurrency is %d, but must be at least 1", source.ErrInvalid, n)
	}
	return through(s, make(running, n)), nil
}

// running has an item for each running read. Goroutines that wait to send on a channel are served
// in their order.
type running chan struct{}

func (t running) pass(ctx context.Context, closing <-chan struct{}, r read) (int, error) {
	select {
	case t <- struct{}{}:
	default:
		arrived := time.Now()
		select {
		case t <- struct{}{}:
			loadtime.Queued(ctx, time.Since(arrived))
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-closing:
			return 0, errClosing()
		}
	}
	defer func() { <-t }()
	return r.do(ctx)
}
