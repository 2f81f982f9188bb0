package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/poll"
	"github.com/stocached/stocached/source"
)

// Around returns a source that asks the tiers of a set before it reads s. It owns both. Its Read is
// fastest if dst has Spare more bytes than the sample; they may change.
func Around(s source.Source, set *Set) source.Source {
	return &around{Source: s, set: set, closing: make(chan struct{})}
}

type around struct {
	source.Source
	set     *Set
	scratch sync.Pool // holds *[]byte
	once    sync.Once
	closing chan struct{}
}

// begin checks a Read, and returns the size of the sample, and memory for it and Spare more bytes. The caller
// calls done after its last use.
func (a *around) begin(ctx context.Context, i int, dst []byte) (size int, room []byte, done func(), err error) {
	select {
	case <-a.closing:
		return 0, nil, nil, fmt.Errorf("%w, with its tiers", source.ErrClosed)
	default:
	}
	if size, err = a.Source.Size(i); err != nil {
		return 0, nil, nil, err
	}
	if err := source.CheckRead(ctx, i, a.Info().Samples, size, dst); err != nil {
		return 0, nil, nil, err
	}
	if len(dst) >= size+Spare {
		return size, dst[:size+Spare], func() {}, nil
	}
	b := a.take(size + Spare)
	return size, *b, func() { a.scratch.Put(b) }, nil
}

// get asks the tiers for a sample, and writes it to those before the one that has it. It returns its length.
func (a *around) get(ctx context.Context, i, size int, room []byte) (int, bool) {
	for k, q := range a.set.queues {
		if n, r := q.tier.Get(ctx, i, size, room); r == Hit {
			a.set.put(ctx, k, i, room[:n])
			return n, true
		}
	}
	return 0, false
}

// Read is part of source.Source.
func (a *around) Read(ctx context.Context, i int, dst []byte) (int, error) {
	size, room, done, err := a.begin(ctx, i, dst)
	if err != nil {
		return 0, err
	}
	defer done()
	if source.WantedFile(ctx) != nil {
		return a.Source.Read(ctx, i, dst)
	}
	if n, hit := a.get(ctx, i, size, room); hit {
		return copy(dst, room[:n]), nil
	}
	if source.IsTiersOnly(ctx) {
		return 0, source.ErrLoad
	}
	claimed := false
	if shared := a.set.shared; shared != nil {
		length, result, err := a.claim(ctx, shared, i, size, room)
		switch {
		case err != nil:
			return 0, err
		case result == Hit:
			a.set.put(ctx, a.set.before, i, room[:length])
			return copy(dst, room[:length]), nil
		}
		claimed = result == Claimed
	}
	n, err := a.Source.Read(ctx, i, dst)
	if err != nil {
		if claimed {
			a.set.shared.Release(i)
		}
		return 0, err
	}
	a.set.put(ctx, len(a.set.queues), i, dst[:n])
	return n, nil
}

// claim gets a sample that another machine loads, or the right to load it (Claimed). Any other
// result: the caller loads it without that right.
func (a *around) claim(ctx context.Context, shared Shared, i, size int, room []byte) (
	length int, result Result, err error) {
	began, waits := time.Now(), false
	defer func() { loadtime.Queued(ctx, time.Since(began)) }()
	err = poll.Until(ctx, a.closing, shared.LongestWait(), func() bool {
		if length, result = shared.Claim(ctx, i, size, room); result == Busy && !waits {
			waits = true
			shared.Waited()
		}
		return result != Busy
	})
	switch {
	case errors.Is(err, poll.ErrEnough):
		shared.GaveUp()
		return 0, Out, nil
	case errors.Is(err, poll.ErrEnded):
		err = fmt.Errorf("%w while a read waited for the load of another machine", source.ErrClosed)
	}
	if err != nil {
		return 0, Out, err
	}
	return length, result, nil
}

func (a *around) take(n int) *[]byte {
	b, _ := a.scratch.Get().(*[]byte)
	if b == nil || cap(*b) < n {
		made := make([]byte, n)
		b = &made
	}
	*b = (*b)[:n]
	return b
}

// Close is part of source.Source. It also writes what is in the queues, for a bounded time.
func (a *around) Close() error {
	a.once.Do(func() { close(a.closing) })
	closed := make(chan error, 1)
	go func() { closed <- a.Source.Close() }() // a read that hangs keeps no sample from a tier
	err := a.set.Close()
	if other := <-closed; other != nil {
		return other
	}
	return err
}
