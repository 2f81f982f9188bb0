package decode

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/stocached/stocached/source"
)

// helpers are the processes of one program, one a core. All sources of this process share them.
type helpers struct {
	path    string
	decoder string       // which library they have
	idle    chan *helper // nil: not started
	closed  chan struct{}

	mu    sync.Mutex
	users int // sources
}

var shared = struct {
	sync.Mutex
	of map[string]*helpers
}{of: map[string]*helpers{}}

// openHelpers returns the helpers of a path for one more source. It starts one, to see whether it
// works.
func openHelpers(path string) (*helpers, error) {
	shared.Lock()
	defer shared.Unlock()
	if p := shared.of[path]; p != nil {
		p.users++
		return p, nil
	}
	first, err := startHelper(path)
	if err != nil {
		return nil, err
	}
	n := runtime.GOMAXPROCS(0)
	p := &helpers{path: path, decoder: first.decoder, idle: make(chan *helper, n), closed: make(chan struct{}), users: 1}
	p.idle <- first
	for range n - 1 {
		p.idle <- nil
	}
	shared.of[path] = p
	return p, nil
}

// close ends the processes after the last source, except those that decode: put ends these.
func (p *helpers) close() {
	shared.Lock()
	defer shared.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	delete(shared.of, p.path)
	p.mu.Lock()
	close(p.closed)
	p.mu.Unlock()
	for {
		select {
		case h := <-p.idle:
			if h != nil {
				h.stop()
			}
		default:
			return
		}
	}
}

// take waits for a helper that nobody uses, and starts it if it has ended.
func (p *helpers) take(ctx context.Context) (h *helper, err error) {
	select {
	case h = <-p.idle:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.closed:
		return nil, source.ErrClosed
	}
	if h != nil {
		select {
		case <-h.ended:
			h.stop()
			h = nil
		default:
			return h, nil
		}
	}
	if h, err = startHelper(p.path); err != nil {
		p.put(nil)
	}
	return h, err
}

// put gives a helper back; nil: it has ended.
func (p *helpers) put(h *helper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		if h != nil {
			h.stop()
		}
	default:
		p.idle <- h
	}
}

// with calls a function with a helper, and a second time with another one if the first has died.
func (p *helpers) with(ctx context.Context, use func(*helper) error) error {
	for try := 0; ; try++ {
		h, err := p.take(ctx)
		if err != nil {
			return err
		}
		err = use(h)
		var lost *lostError
		if errors.As(err, &lost) {
			h.stop()
			h = nil
		}
		p.put(h)
		if lost == nil || !lost.again || try > 0 {
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
	return p.with(ctx, func(h *helper) error {
		if err := h.room(int(r.Result) + len(dst)); err != nil {
			return &lostError{err, false}
		}
		write(h.shared[:input])
		err := h.do(ctx, &r)
		if err == nil {
			copy(dst, h.shared[r.Result:])
		}
		if large && err == nil {
			if err := h.forget(); err != nil {
				return &lostError{err, false}
			}
		}
		return err
	})
}
