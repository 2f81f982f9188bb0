package decode

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// helpers are the processes of one program, at most one a core. All sources of this process share
// them.
type helpers struct {
	path    string
	decoder string        // which library they have, and which pixels it makes
	pixels  string        // as in process: the same in all of them
	free    chan struct{} // as many items as lanes are free

	mu    sync.Mutex // protects the fields below, and those of seats and processes that say so
	seats []seat
	users int // sources; 0: closed
}

// seat is the place of a process.
type seat struct {
	starting sync.Mutex // held while a process starts
	process  *process   // nil: none. helpers.mu protects it, as the next
	busy     int        // pictures that have a lane here, or will have one
}

// Readers returns how many samples a server reads at a time, if its configuration does not say so. There is
// one for each lane: while a process works on a picture, its other lanes read files, wait, or store pixels.
func Readers() int {
	const least, most = 4, shm.ClaimsPerClient
	return max(least, min(lanes*runtime.GOMAXPROCS(0), most))
}

// mostLosses bounds how many processes may die before they take a picture.
const mostLosses = 20

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
	first, err := startProcess(path)
	if err != nil {
		return nil, err
	}
	p := &helpers{path: path, decoder: first.decoder, pixels: first.pixels, seats: make([]seat, runtime.GOMAXPROCS(0)), users: 1}
	p.free = make(chan struct{}, lanes*len(p.seats))
	for range cap(p.free) {
		p.free <- struct{}{}
	}
	p.seats[0].process = first
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
	for k := range p.seats {
		p.retire(&p.seats[k])
	}
}

// retire takes a process off its seat, and stops it when all its lanes are idle. The caller holds mu.
func (p *helpers) retire(s *seat) {
	was := s.process
	if s.process = nil; was == nil {
		return
	}
	if was.retired = true; len(was.idle) == lanes {
		was.stop()
	}
}

// take waits until a lane is free. It starts a process if there is none. A put must follow if there is
// no error.
func (p *helpers) take(ctx context.Context) (l *lane, err error) {
	select {
	case <-p.free:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	s := &p.seats[0]
	for k := range p.seats { // an idle process, else one that has the next picture ready when it ends one
		if p.seats[k].busy < s.busy {
			s = &p.seats[k]
		}
	}
	s.busy++
	p.mu.Unlock()
	if l, err = p.sit(s); err != nil {
		p.leave(s)
	}
	return l, err
}

// sit takes a lane of the process of a seat.
func (p *helpers) sit(s *seat) (*lane, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.process != nil {
		select {
		case <-s.process.ended: // somebody killed it
			p.retire(s)
		default:
		}
	}
	if s.process == nil && p.users > 0 {
		p.mu.Unlock()
		started, err := startProcess(p.path)
		if err == nil && started.pixels != p.pixels {
			started.stop()
			err = &lostError{fmt.Errorf("%s has another decoder since this server opened its sources, which makes other "+
				"pixels (%s, before %s); restart the server", p.path, started.pixels, p.pixels), false, false}
		}
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
		if s.process = started; p.users == 0 {
			p.retire(s)
		}
	}
	if p.users == 0 {
		return nil, source.ErrClosed
	}
	idle := s.process.idle
	l := idle[len(idle)-1]
	l.seat, s.process.idle = s, idle[:len(idle)-1]
	return l, nil
}

// put gives a lane back. lost: its process has ended.
func (p *helpers) put(l *lane, lost bool) {
	s, was := l.seat, l.process
	p.mu.Lock()
	if lost && s.process == was {
		p.retire(s)
	}
	was.idle = append(was.idle, l)
	if was.retired && len(was.idle) == lanes {
		was.stop()
	}
	p.mu.Unlock()
	p.leave(s)
}

// leave says that a picture needs its seat no more.
func (p *helpers) leave(s *seat) {
	p.mu.Lock()
	s.busy--
	p.mu.Unlock()
	p.free <- struct{}{}
}

// with calls a function with a lane, and a second time with another process if the first has died in
// the middle of this picture.
func (p *helpers) with(ctx context.Context, use func(*lane) error) error {
	tries := 0
	for losses := 0; ; losses++ {
		l, err := p.take(ctx)
		var lost *lostError
		if err == nil {
			err = use(l)
			p.put(l, errors.As(err, &lost))
		}
		if !errors.As(err, &lost) || !lost.again || losses == mostLosses {
			return err
		}
		if !lost.waited {
			if tries++; tries > 1 {
				return err
			}
		}
	}
}

// picture makes the pixels of dst from a file. It returns errShortMemory if that takes more than most bytes.
func (p *helpers) picture(ctx context.Context, r request, file []byte, most int64, dst []byte) error {
	r.Input, r.Result, r.Most = uint64(len(file)), uint64(len(file)+63)/64*64, uint64(most)
	// For the policy cost, a load costs what the helper computes, and not the wait for it.
	var used, here time.Duration
	began := time.Now()
	defer func() { loadtime.Elsewhere(ctx, loadtime.Cost{All: used}, time.Since(began)-here) }()
	return p.with(ctx, func(l *lane) error {
		began := time.Now()
		if err := l.room(int(r.Result) + len(dst)); err != nil {
			return &lostError{err, false, false}
		}
		copy(l.shared, file)
		here += time.Since(began)
		took, err := l.do(ctx, &r)
		used += took
		began = time.Now()
		if err == nil {
			copy(dst, l.shared[r.Result:])
		}
		if int(r.Result)+len(dst) > mostKept && err == nil {
			if err := l.forget(); err != nil {
				return &lostError{err, false, false}
			}
		}
		here += time.Since(began)
		return err
	})
}
