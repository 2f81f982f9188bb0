package source_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stocached/stocached/source"
)

// What is left after an error or the end of the context costs nothing: no goroutine begins for it.
func TestEachEnds(t *testing.T) {
	const samples = 100_000
	failed := errors.New("failed")
	for _, fails := range []bool{true, false} {
		allocated := testing.AllocsPerRun(1, func() {
			ctx, end := context.WithCancelCause(t.Context())
			err := source.Each(ctx, samples, 4, 1, func(context.Context, int) error {
				if fails {
					return failed
				}
				end(failed)
				return nil
			})
			if !errors.Is(err, failed) {
				t.Errorf("the error is %v, and a call failed: %v", err, fails)
			}
		})
		if allocated > samples/100 {
			t.Errorf("%d samples took %.0f allocations after the first one ended it", samples, allocated)
		}
	}
}
