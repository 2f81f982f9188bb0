// Package looks waits for a load by another program or machine: it looks again and again.
package looks

import (
	"context"
	"errors"
	"time"
)

// The pauses between two looks, each 1.5 times the one before: docs/spec/control.md, docs/spec/tiers.md.
const (
	first   = 2 * time.Millisecond
	longest = 100 * time.Millisecond
)

// Errors of Until.
var (
	ErrEnough = errors.New("the longest wait is over")
	ErrEnded  = errors.New("the wait was ended")
)

// Until looks until look returns true. It returns the cause of ctx, ErrEnough after most, or ErrEnded when end
// is closed. end may be nil.
func Until(ctx context.Context, end <-chan struct{}, most time.Duration, look func() bool) error {
	began := time.Now()
	if look() {
		return nil
	}
	timer := time.NewTimer(first)
	defer timer.Stop()
	for pause := first; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return ErrEnded
		}
		if look() {
			return nil
		}
		if time.Since(began) > most {
			return ErrEnough
		}
		pause = min(pause+pause/2, longest)
		timer.Reset(pause)
	}
}
