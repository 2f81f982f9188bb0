package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// inflight is one load under way, for which concurrent callers for the same sample wait.
type inflight struct {
	done chan struct{} // closed when data and err are final
	data []byte
	err  error
	over bool // the load came to no answer that could be handed on: it was cancelled by its own caller's context

	waiting int // callers that wait for it; protected by the Cache's mu
}

// GetOrLoad returns a sample: from the cache, or from load, whose result it stores. Concurrent callers of one Cache load a sample once, and all get the result;
// other processes may load it too, and the first one's is kept. The slice returned is the caller's own.
//
// ctx is handed to load, and ends waiting for somebody else's. An error of load goes to its callers and is not cached. If load panics, its caller panics and those who
// wait get an error. If storing fails for another reason than ErrReadOnly, the error is returned together with the data, which is good; that there was no room is no
// error. ErrIndex, ErrSchema (load returned a wrong size), ErrClosed, ErrCorrupt, ErrLost, ErrSystem.
func (c *Cache) GetOrLoad(ctx context.Context, i int, load func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	if data, hit, err := c.getOwn(i, c.Get); hit || err != nil {
		return data, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		f, leader := c.join(i)
		if leader {
			return c.lead(ctx, i, f, load)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-f.done:
		}
		if !f.over {
			return slices.Clone(f.data), f.err
		}
	}
}

// join returns the load of a sample that is under way, and whether the caller has to do it.
func (c *Cache) join(i int) (f *inflight, leader bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.inflight[i]; f != nil {
		f.waiting++
		return f, false
	}
	f = &inflight{done: make(chan struct{})}
	c.inflight[i] = f
	return f, true
}

// lead loads a sample and tells everybody who waits.
func (c *Cache) lead(ctx context.Context, i int, f *inflight, load func(ctx context.Context) ([]byte, error)) (data []byte, err error) {
	f.err = fmt.Errorf("loading sample %d ended in another goroutine without an answer: it panicked", i) // unless load returns
	defer func() {
		c.mu.Lock()
		delete(c.inflight, i)
		if f.waiting > 0 {
			f.data = slices.Clone(f.data) // our caller may change its own before they have copied it
		}
		c.mu.Unlock()
		close(f.done)
	}()
	// Another load may have ended between our miss and this one. Without this second check the sample would be loaded twice.
	if state, err := c.State(i); err == nil && state == StateReady {
		if data, hit, err := c.getOwn(i, c.Get); hit || err != nil {
			f.data, f.err = data, err
			return data, err
		}
	}
	data, err = load(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		f.over = true // those who wait have contexts of their own
		return nil, err
	case err != nil:
		f.err = err
		return nil, err
	}
	if _, err = c.Set(i, data, 0); errors.Is(err, ErrReadOnly) {
		err = nil
	}
	f.data, f.err = data, err
	return data, err
}

// getOwn returns a copy of a sample. get: Get, or its like that is not counted.
func (c *Cache) getOwn(i int, get func(i int, dst []byte) (int, bool, error)) ([]byte, bool, error) {
	if !c.Variable() {
		dst := make([]byte, c.SampleBytes())
		n, hit, err := get(i, dst)
		if !hit {
			return nil, false, err
		}
		return dst[:n], true, nil
	}
	var dst []byte
	for {
		n, hit, err := get(i, dst)
		switch {
		case hit:
			return dst[:n], true, nil
		case n > len(dst) && errors.Is(err, ErrSchema): // too short; it may have grown again by the next try
			dst = make([]byte, n)
		default:
			return nil, false, err
		}
	}
}
