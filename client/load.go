package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stocached/stocached/internal/loadtime"
)

// inflight is one load, for which concurrent callers for the same sample wait.
type inflight struct {
	done chan struct{} // closed when data and err are final
	data []byte
	err  error
	over bool // the load has no result for others: its caller's context cancelled it

	waiting int // callers that wait for the load; protected by the Cache's mu
}

// GetOrLoad returns a sample from the cache, from Options.Disk, or calls load and stores its result. Concurrent
// callers of one Cache load a sample once, and all get the result. Other processes may load it too;
// the cache keeps the first result. The caller owns the slice.
//
// load gets ctx, or in a cache with PolicyCost a context below it. There GetOrLoad measures what the
// load cost: its processor time and its waits. Time in which other goroutines or processes had the
// processors does not count. During a load, the goroutine stays on one thread.
//
// The end of ctx also ends a wait for another caller's load. An error of load goes
// to all its callers and is not cached. If load panics, its caller panics, and callers that wait
// get an error. If the sample cannot be stored, GetOrLoad returns the error together with the data,
// which is valid; but a full cache and ErrReadOnly are no errors. Errors: ErrIndex, ErrSchema (load
// returned a wrong size), ErrClosed, ErrCorrupt, ErrLost, ErrSystem.
func (c *Cache) GetOrLoad(ctx context.Context, i int, load func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	if data, hit, err := c.getOwn(i, c.Get); hit || err != nil {
		return data, err
	}
	return c.LoadMissed(ctx, i, load)
}

// LoadMissed is GetOrLoad of a sample that the caller has just missed, such as with Get or Gather: that call has
// counted the miss, so this one counts nothing. It returns the errors of GetOrLoad.
func (c *Cache) LoadMissed(ctx context.Context, i int, load func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	if _, err := c.c.State(i); err != nil { // ErrIndex, ErrClosed
		return nil, err
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

// join returns the inflight load of a sample, or a new one that the caller MUST lead.
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

// lead loads a sample and passes the result to all callers that wait.
func (c *Cache) lead(ctx context.Context, i int, f *inflight,
	load func(ctx context.Context) ([]byte, error)) (data []byte, err error) {
	f.err = fmt.Errorf("the load of sample %d panicked in another goroutine", i) // unless load returns
	defer func() {
		c.mu.Lock()
		delete(c.inflight, i)
		if f.waiting > 0 {
			f.data = slices.Clone(f.data) // our caller may change its slice before the others have copied it
		}
		c.mu.Unlock()
		close(f.done)
	}()
	// Another load may have ended between our miss and this one. Without this second check the
	// sample would be loaded twice.
	if state, err := c.c.State(i); err == nil && state == StateReady {
		if data, hit, err := c.getOwn(i, c.c.Copy); hit || err != nil {
			f.data, f.err = data, err
			return data, err
		}
	}
	if data, hit := c.Loads().FromDisk(i, nil); hit {
		f.data, f.err = data, nil
		return data, nil
	}
	took := loadtime.MeasureIf(c.Loads().MeasureNext(), ctx, func(ctx context.Context) { data, err = load(ctx) })
	switch {
	case err != nil && ctx.Err() != nil:
		f.over = true // the callers that wait have their own contexts
		return nil, err
	case err != nil:
		f.err = err
		return nil, err
	}
	if _, err = c.SetParts(i, [][]byte{data}, 0, took.All); errors.Is(err, ErrReadOnly) {
		err = nil
	}
	if err == nil {
		c.Loads().ToDisk(i, data)
	}
	f.data, f.err = data, err
	return data, err
}

// getOwn returns a copy of a sample. get is Get, or Copy, which does not count.
func (c *Cache) getOwn(i int, get func(i int, dst []byte) (int, bool, error)) ([]byte, bool, error) {
	return c.c.ReadOwn(i, get, func(n int) []byte { return make([]byte, n) })
}
