package looks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Ensure that pauses grow by a half to the longest, and that each way to end a wait does so.
func TestUntil(t *testing.T) {
	p := Pauses{First: 2 * time.Millisecond, Longest: 5 * time.Millisecond, Most: 30 * time.Millisecond}
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		look := func() bool { at = append(at, time.Since(began)); return len(at) == 6 }
		if err := p.Until(t.Context(), nil, look); err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{0, 2, 5, 9500, 14500, 19500}
		for k, one := range at {
			if w := want[k]; k > 2 && one != w*time.Microsecond || k <= 2 && one != w*time.Millisecond {
				t.Errorf("look %d after %v", k, one)
			}
		}
		if err := p.Until(t.Context(), nil, func() bool { return false }); !errors.Is(err, ErrEnough) {
			t.Error(err)
		}
		cause := errors.New("no patience")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		if err := p.Until(ctx, nil, func() bool { return false }); !errors.Is(err, cause) {
			t.Error(err)
		}
		end := make(chan struct{})
		close(end)
		if err := p.Until(t.Context(), end, func() bool { return false }); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
	})
}
