package source

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Each calls do for 0..n-1 in several goroutines, which take a share at a time. It returns the first error, which ends
// the rest, else the cause of ctx if that has ended before all calls.
func Each(ctx context.Context, n, goroutines, share int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(goroutines)
	for from, ended := 0, false; from < n && !ended; from += share {
		ended = ctx.Err() != nil // then this call returns why
		all.Go(func() error {
			for i := from; i < min(from+share, n); i++ {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}
