// Package looks waits for a load by another program or machine: it looks again and again.
package looks

import (
	"context"
	"errors"
	"time"
)

// Pauses says how long to wait.
type Pauses struct {
	First, Longest time.Duration // pauses between two looks; each is 1.5 times the one before
	Most           time.Duration // from the first look on
}

// Errors of Until.
var (
	ErrEnough = errors.New("the longest wait is over")
	ErrEnded  = errors.New("the wait was ended")
)

// Until looks until look returns true. It returns the cause of ctx, ErrEnough after Most, or ErrEnded when end
// is closed. end may be nil.
func (p Pauses) Until(ctx context.Context, end <-chan struct{}, look func() bool) error {
	began := time.Now()
	if look() {
		return nil
	}
	timer := time.NewTimer(p.First)
	defer timer.Stop()
	for pause := p.First; ; {
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
		if time.Since(began) > p.Most {
			return ErrEnough
		}
		pause = min(pause+pause/2, p.Longest)
		timer.Reset(pause)
	}
}
