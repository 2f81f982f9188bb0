package poll

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that pauses grow by a half to the longest, and that each way to end a wait does so.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		look := func() bool { at = append(at, time.Since(began)); return len(at) == 15 }
		fatal.If(t, Until(t.Context(), nil, time.Minute, look))
		want, pause := time.Duration(0), 2*time.Millisecond
		for k, one := range at {
			expect.Equal(t, one, want, "look %d", k)
			want += pause
			pause = min(pause*3/2, 100*time.Millisecond)
		}
		expect.Error(t, Until(t.Context(), nil, 30*time.Millisecond, func() bool { return false }), ErrEnough)
		cause := errors.New("no patience")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		expect.Error(t, Until(ctx, nil, time.Minute, func() bool { return false }), cause)
		end := make(chan struct{})
		close(end)
		expect.Error(t, Until(t.Context(), end, time.Minute, func() bool { return false }), ErrEnded)
	})
}
