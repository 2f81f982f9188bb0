// Package poll waits for a load by another program or machine.
package poll

import (
	"context"
	"errors"
	"time"
)

// The pauses between two checks, each 1.5 times the one before: docs/spec/control.md, docs/spec/tiers.md.
const (
	first   = 2 * time.Millisecond
	longest = 100 * time.Millisecond
)

// Errors of Until.
var (
	ErrEnough = errors.New("the longest wait is over")
	ErrEnded  = errors.New("the wait was ended")
)

// Until calls check until it returns true. It returns the cause of ctx, ErrEnough after most, or ErrEnded when end
// is closed. end may be nil.
func Until(ctx context.Context, end <-chan struct{}, most time.Duration, check func() bool) error {
	began := time.Now()
	if check() {
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
		if check() {
			return nil
		}
		if time.Since(began) > most {
			return ErrEnough
		}
		pause = min(pause+pause/2, longest)
		timer.Reset(pause)
	}
}
