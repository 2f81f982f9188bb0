package loader

import "context"

// AroundPrefetch calls around in place of each request that has the server prefetch. prefetch is that request.
func (l *Loader) AroundPrefetch(around func(ctx context.Context, indices []int, prefetch func())) {
	inner := l.prefetch
	l.prefetch = func(ctx context.Context, indices []int) {
		around(ctx, indices, func() { inner(ctx, indices) })
	}
}
