package decode

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/source"
)

// helpers are the processes of one program, at most one a core. All sources of this process share
// them.
type helpers struct {
	path    string
	decoder string        // which library they have
	free    chan struct{} // as many items as further helpers may decode

	mu    sync.Mutex // protects the fields below
	idle  []*helper
	users int // sources; 0: closed
}

var opened = struct {
	sync.Mutex
	of map[string]*helpers
}{of: map[string]*helpers{}}

// openHelpers returns the helpers of a path for one more source. It starts one, to see whether it
// works.
func openHelpers(path string) (*helpers, error) {
	opened.Lock()
	defer opened.Unlock()
	if p := opened.of[path]; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.users++
		return p, nil
	}
	first, err := startHelper(path)
	if err != nil {
		return nil, err
	}
	p := &helpers{path: path, decoder: first.decoder, free: make(chan struct{}, runtime.GOMAXPROCS(0)),
		idle: []*helper{first}, users: 1}
	for range cap(p.free) {
		p.free <- struct{}{}
	}
	opened.of[path] = p
	return p, nil
}

// close ends the processes after the last source, except those that decode: put ends these.
func (p *helpers) close() {
	opened.Lock()
	defer opened.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	delete(opened.of, p.path)
	for _, h := range p.idle {
		h.stop()
	}
	p.idle = nil
}

// take waits until a helper may decode. It starts one if none is idle. A put must follow if there is
// no error.
func (p *helpers) take(ctx context.Context) (h *helper, err error) {
	select {
	case <-p.free:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() {
		if err != nil {
			p.free <- struct{}{}
		}
	}()
	for {
		p.mu.Lock()
		users, n := p.users, len(p.idle)
		if n > 0 {
			h, p.idle = p.idle[n-1], p.idle[:n-1]
		}
		p.mu.Unlock()
		switch {
		case users == 0:
			return nil, source.ErrClosed
		case n == 0:
			return startHelper(p.path)
		}
		select {
		case <-h.ended: // somebody killed it
			h.stop()
		default:
			return h, nil
		}
	}
}

// put gives a helper back; nil: it has ended.
func (p *helpers) put(h *helper) {
	p.mu.Lock()
	switch {
	case h == nil:
	case p.users == 0:
		h.stop()
	default:
		p.idle = append(p.idle, h)
	}
	p.mu.Unlock()
	p.free <- struct{}{}
}

// with calls a function with a helper, and a second time with another one if the first has died.
func (p *helpers) with(ctx context.Context, use func(*helper) error) error {
	for try := 0; ; try++ {
		h, err := p.take(ctx)
		var lost *lostError
		if err == nil {
			if err = use(h); errors.As(err, &lost) {
				h.stop()
				h = nil
			}
			p.put(h)
		}
		if !errors.As(err, &lost) || !lost.again || try > 0 {
			return err
		}
	}
}

// picture makes the pixels of dst in a helper. write puts the input into the shared memory. large:
// the picture takes so much memory that it must not be kept.
func (p *helpers) picture(ctx context.Context, r request, input int, write func([]byte), dst []byte, large bool) error {
	r.Input, r.Result = uint64(input), uint64(input+63)/64*64
	if large {
		r.Release = 1
	}
	// For the policy cost, a load costs what the helper computes, and not the wait for it.
	var used, here time.Duration
	began := time.Now()
	defer func() { loadtime.Elsewhere(ctx, used, time.Since(began)-here) }()
	return p.with(ctx, func(h *helper) error {
		began := time.Now()
		if err := h.room(int(r.Result) + len(dst)); err != nil {
			return &lostError{err, false}
		}
		write(h.shared[:input])
		here += time.Since(began)
		took, err := h.do(ctx, &r)
		used += took
		began = time.Now()
		if err == nil {
			copy(dst, h.shared[r.Result:])
		}
		if large && err == nil {
			if err := h.forget(); err != nil {
				return &lostError{err, false}
			}
		}
		here += time.Since(began)
		return err
	})
}
