package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/clock"
	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/poll"
)

const (
	// patience is how long a program waits for the load of another one. After that it loads the sample itself.
	patience = time.Minute
	// askAgain is how long a program does not ask a server that was away.
	askAgain = 5 * time.Second
	// askTimeout is how long a server may take for an answer. It never waits for the load of a program.
	askTimeout = 5 * time.Second
)

// GetOrLoad is Cache.GetOrLoad. In a cache of Programs, it first asks the server whether another program
// or machine has the sample, and then offers what load has given. Without a server it loads.
func (s *Served) GetOrLoad(ctx context.Context, i int, load func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	return s.Cache.GetOrLoad(ctx, i, func(ctx context.Context) ([]byte, error) { return s.AskOrLoad(ctx, i, load) })
}

// LoadMissed is Cache.LoadMissed, and asks and offers as GetOrLoad does.
func (s *Served) LoadMissed(ctx context.Context, i int, load func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	return s.Cache.LoadMissed(ctx, i, func(ctx context.Context) ([]byte, error) { return s.AskOrLoad(ctx, i, load) })
}

// AskOrLoad returns a sample of a cache of Programs that another program or machine has, or loads it, and stores and
// offers the result. It is for callers with workers of their own, such as loaders: it counts nothing, and callers for
// the same sample each load it, unless they do so on other connections.
func (s *Served) AskOrLoad(ctx context.Context, i int,
	load func(ctx context.Context) ([]byte, error)) (data []byte, err error) {
	if !s.programs() {
		return load(ctx)
	}
	data, asked, err := s.ask(ctx, i)
	if data != nil || err != nil {
		return data, err
	}
	ok := false // load may panic
	defer func() {
		if !ok && asked {
			s.tryOffer(context.WithoutCancel(ctx), control.OfferBody{Flags: control.Failed, Index: int64(i)})
		}
	}()
	took := loadtime.MeasureIf(s.Loads().MeasureNext(), ctx, func(ctx context.Context) { data, err = load(ctx) })
	if err != nil {
		return nil, err
	}
	if _, err = s.SetParts(i, [][]byte{data}, 0, took.All); err != nil && !errors.Is(err, ErrReadOnly) {
		return data, err
	}
	ok = true
	if asked {
		s.tryOffer(ctx, control.OfferBody{Index: int64(i), Sample: data})
	}
	return data, nil
}

// Offer gives a sample that the caller has loaded, and not got from GetOrLoad, to other machines, and says
// whether a tier takes it. Errors: ErrInvalid unless the cache is one of Programs; ErrSchema for a sample of
// another size; those of Fetch.
func (s *Served) Offer(ctx context.Context, i int, data []byte) (taken bool, err error) {
	switch {
	case !s.programs():
		return false, fmt.Errorf("%w: the server reads the samples of this cache from a source; Offer is for source: "+
			"{kind: none}", ErrInvalid)
	case !s.fits(data):
		return false, fmt.Errorf("%w: %d bytes, a sample has %d", ErrSchema, len(data), s.sampleBytes())
	}
	if _, err := s.numbers([]int{i}); err != nil {
		return false, err
	}
	return s.sendOffer(ctx, control.OfferBody{Index: int64(i), Sample: data})
}

// fits says whether a sample of the cache may have so many bytes.
func (s *Served) fits(data []byte) bool {
	return len(data) == s.sampleBytes() || s.seg.Variable() && len(data) < s.sampleBytes()
}

// tryOffer tells the server how a load has ended, if it answers soon. Without that others load the sample too.
func (s *Served) tryOffer(ctx context.Context, m control.OfferBody) {
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	_, _ = s.sendOffer(ctx, m)
}

// sendOffer sends an OFFER, and says whether a tier takes the sample.
func (s *Served) sendOffer(ctx context.Context, m control.OfferBody) (taken bool, err error) {
	c, err := s.link.connection(ctx, s.link.timeout)
	if err != nil {
		return false, err
	}
	m.Cache = c.cache
	p, err := c.exchange(ctx, &pending{done: make(chan struct{})},
		func(id uint64) []byte { return control.AppendOffer(nil, id, m) })
	return err == nil && p.used, err
}

// ask returns a sample that another program or machine has. nil: the caller loads it; if asked, others wait for
// that.
func (s *Served) ask(ctx context.Context, i int) (data []byte, asked bool, err error) {
	if int64(clock.Now()) < s.away.Load() {
		return nil, false, nil
	}
	began := time.Now()
	defer func() { loadtime.Queued(ctx, time.Since(began)) }()
	var code control.Code
	var failed error
	err = poll.Until(ctx, nil, patience, func() bool {
		data, code, failed = s.askOnce(ctx, i)
		return failed != nil || code != control.CodeLoading || ctx.Err() != nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case err != nil: // others have not loaded it in all that time
		return nil, false, nil
	case errors.Is(failed, ErrIndex), errors.Is(failed, ErrClosed), errors.Is(failed, ErrReplaced):
		return nil, false, failed
	case failed != nil:
		s.away.Store(int64(clock.Now() + askAgain))
		return nil, false, nil
	}
	return data, code == control.CodeLoad, nil
}

// askOnce returns a sample, or why the server has none.
func (s *Served) askOnce(ctx context.Context, i int) (data []byte, code control.Code, err error) {
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	err = s.fill(ctx, control.Loads, []int{i}, []int{0}, func(_ int, sample []byte) bool {
		data = append([]byte(nil), sample...)
		return s.fits(data)
	}, func(int) (hit bool, err error) {
		data, hit, err = s.getOwn(i, s.c.Copy)
		return hit, err
	})
	if failed := (*FetchError)(nil); errors.As(err, &failed) {
		return nil, failed.Failures[0].Code, nil
	}
	return data, 0, err
}
