package dir

import (
	"context"
	"sync"
	"sync/atomic"
)

// lookups is how many goroutines inspect files and folders concurrently. It exceeds the number of
// cores, because they wait for the disk or the network.
const lookups = 16

// each calls do for 0..n-1 in several goroutines, until a call fails or ctx ends.
func each(ctx context.Context, n int, do func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	const share = 64 // taken at a time, so that goroutines do not contend for the counter
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(lookups, (n+share-1)/share) {
		all.Go(func() {
			for {
				end := int(next.Add(share))
				for i := end - share; i < min(end, n); i++ {
					if err := do(i); err != nil {
						cancel(err)
						return
					}
				}
				if end >= n || ctx.Err() != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
