package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// filler reads samples of one cache from its source: each one once, however many want it at the same time, and for one client after the other in turn.
//
// A want goes into the queue of its client, and onto the list of its sample's flight. A goroutine takes the next want of the next client and flies the sample,
// unless somebody has meanwhile. So who asks for much waits for its own, and a want that is cancelled takes nothing with it that others want.
type filler struct {
	cache *cache.Cache
	log   *slog.Logger

	mu      sync.Mutex // protects what follows, and the flights, wants and readers
	source  source.Source
	wake    sync.Cond // there may be something to do
	flights map[int]*flight
	now     turns // fetches
	later   turns // prefetches, when no fetch can be read for
	closing bool

	readers
	buffers sync.Pool // of *[]byte

	tally *tally
}

// flight is one sample that is wanted. One that runs stays, even when nobody wants it any more, until its read has ended: no other read of the sample is begun beside it.
type flight struct {
	wants   []*want
	running bool
	cancel  context.CancelFunc // of the read, while it runs
}

// add lists a want.
func (fl *flight) add(w *want) {
	w.at = len(fl.wants)
	fl.wants = append(fl.wants, w)
}

// remove takes a want off the list. false: it is not on it.
func (fl *flight) remove(w *want) bool {
	last := len(fl.wants) - 1
	if w.at > last || fl.wants[w.at] != w {
		return false
	}
	fl.wants[w.at] = fl.wants[last]
	fl.wants[w.at].at = w.at
	fl.wants[last] = nil
	fl.wants = fl.wants[:last]
	return true
}

// want is one position of a request.
type want struct {
	request  *request
	position uint32
	index    int
	at       int  // in the list of its flight
	queued   bool // it is in its request's queue
	done     bool // answered, or cancelled
}

// outcome is what a flight came to: READY if code is 0 and data nil.
type outcome struct {
	code control.Code
	text string
	data *shared // the bytes of a sample that got no slot
}

// ending is the outcome of what a closing filler does not read any more.
var ending = outcome{code: control.CodeClosing, text: "the server is ending, or has removed this cache"}

// shared is a buffer that several connections send from. The last one gives it back.
type shared struct {
	bytes  []byte
	users  atomic.Int32
	giveUp func()
}

func (s *shared) release() {
	if s.users.Add(-1) == 0 {
		s.giveUp()
	}
}

// turns is a ring of queues that have something in them.
type turns struct{ ring []*queue }

// queue is what one client wants of one cache, in its order.
type queue struct {
	wants  []*want
	listed bool        // in the ring
	full   func() bool // the client takes no more samples without a slot for now
}

func newFiller(c *cache.Cache, s source.Source, parallel int, tally *tally, log *slog.Logger) *filler {
	f := &filler{cache: c, source: s, log: log, tally: tally, flights: map[int]*flight{}, readers: readers{all: map[*reader]bool{}, left: make(chan struct{})}}
	f.wake.L = &f.mu
	f.buffers.New = func() any { return new([]byte) }
	f.resize(parallel)
	return f
}

// submit lists the wants of a request in its queue, and returns how many; those that are READY already are answered. The caller has set request.remaining.
func (f *filler) submit(r *request) int {
	var missing []*want
	for _, w := range r.wants {
		state, err := f.cache.State(w.index)
		switch {
		case err != nil:
			r.finish(w, failed(control.CodeIndex, err))
		case state == cache.StateReady:
			r.finish(w, outcome{})
		default:
			missing = append(missing, w)
		}
	}
	if len(missing) == 0 {
		return 0
	}
	f.mu.Lock()
	closing := f.closing
	if !closing {
		for _, w := range missing {
			f.add(w)
		}
		f.push(r, missing...)
		for range min(len(missing), f.parallel) { // nobody is woken for nothing
			f.wake.Signal()
		}
	}
	f.mu.Unlock()
	if closing {
		for _, w := range missing {
			r.finish(w, ending)
		}
		return 0
	}
	return len(missing)
}

// push puts wants of a request into its queue. With mu held.
func (f *filler) push(r *request, wants ...*want) {
	if r.prefetch {
		f.later.push(r.queue, wants...)
	} else {
		f.now.push(r.queue, wants...)
	}
}

// add lists a want with its sample's flight. With mu held.
func (f *filler) add(w *want) {
	fl := f.flights[w.index]
	if fl == nil {
		fl = &flight{}
		f.flights[w.index] = fl
	}
	fl.add(w)
}

// cancel gives up the wants of a request that are not answered yet, and returns them. A read that nobody else wants is cancelled: who wants its sample before it has ended waits for
// that, and then has it read anew.
func (f *filler) cancel(r *request) (given []*want) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range r.wants {
		fl := f.flights[w.index]
		if w.done || fl == nil || !fl.remove(w) {
			continue
		}
		w.done = true
		given = append(given, w)
		switch {
		case len(fl.wants) > 0:
		case fl.running:
			fl.cancel()
		default:
			delete(f.flights, w.index)
		}
	}
	r.queue.strip() // its turn may be far
	return given
}

// drained is called by a connection that has room again for samples without a slot.
func (f *filler) drained() {
	f.mu.Lock()
	f.wake.Broadcast()
	f.mu.Unlock()
}

// queued returns how many samples are wanted, and are neither there nor being read.
func (f *filler) queued() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.flights {
		if !fl.running {
			n++
		}
	}
	return n
}

// work flies samples until the filler closes, or has more readers than it is to have.
func (f *filler) work(r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.leave(r)
	for len(f.all) <= f.parallel {
		w := f.now.next()
		if w == nil {
			w = f.later.next()
		}
		if w == nil {
			if f.closing {
				return
			}
			f.wake.Wait()
			continue
		}
		fl := f.flights[w.index]
		if w.done || fl == nil || fl.running {
			continue // answered, cancelled, or somebody is at it
		}
		ctx, cancel := context.WithCancel(context.Background())
		fl.running, fl.cancel = true, cancel
		r.flight, r.index, r.began = fl, w.index, time.Now()
		from := f.source
		f.mu.Unlock()
		fault.At("fill.taken")
		result := f.fly(ctx, from, w.index)
		cancelled := ctx.Err() != nil
		cancel()
		f.mu.Lock()
		if r.flight = nil; r.givenUp {
			if result.data != nil {
				result.data.giveUp()
			}
			return
		}
		fl.running = false
		if result.code != 0 && (cancelled || result.code == control.CodeClosing && from != f.source) {
			// Anew, for who has wanted it since it was given up, or from the source that has taken the place of its own.
			if !f.closing && len(fl.wants) > 0 {
				for _, w := range fl.wants {
					f.push(w.request, w)
				}
				continue
			}
			result = ending
		}
		delete(f.flights, w.index)
		f.land(fl.wants, result)
	}
}

// land answers those who wanted a sample. With mu held, which it gives up meanwhile.
func (f *filler) land(wants []*want, result outcome) {
	var answered, late []*want
	for _, w := range wants {
		full := result.data != nil && !w.request.takes(len(result.data.bytes))
		switch {
		case !full:
			answered = append(answered, w)
		case f.closing: // nobody reads it again
			late = append(late, w)
		default:
			// Its client has enough to take already: again, when it has room. Reading a sample twice costs less than keeping it for who knows how long.
			f.add(w)
			f.push(w.request, w)
			continue
		}
		w.done = true
	}
	f.mu.Unlock()
	if result.data != nil {
		result.data.users.Store(int32(len(answered)) + 1)
	}
	for _, w := range answered {
		w.request.finish(w, result)
	}
	for _, w := range late {
		w.request.finish(w, ending)
	}
	fault.At("fill.answered")
	if result.data != nil {
		result.data.release()
	}
	f.mu.Lock()
}

// fly reads a sample and stores it: one read into a buffer, one write. Measured for 150,528 bytes in the page cache, 4 goroutines, 2 cores: 77 us into new pages, 44 into such that are
// there; by sendfile, with the checksum over the map afterwards, 79 and 60; from a mapped file 76 and 44, and its faults would stop a core for a disk; in pieces of 32 KiB 85 and 49.
func (f *filler) fly(ctx context.Context, from source.Source, index int) outcome {
	if state, err := f.cache.State(index); err == nil && state == cache.StateReady {
		return outcome{}
	}
	began := time.Now()
	size, err := from.Size(index)
	if err != nil {
		return unread(from, index, err)
	}
	buffer := f.buffers.Get().(*[]byte)
	if cap(*buffer) < size {
		*buffer = make([]byte, size)
	}
	data := (*buffer)[:size]
	n, err := from.Read(ctx, index, data)
	if err != nil {
		f.buffers.Put(buffer)
		return unread(from, index, err)
	}
	data = data[:n]
	fault.At("fill.read")
	result, err := f.cache.Set(index, data, 0)
	fault.At("fill.stored")
	if errors.Is(err, shm.ErrClosed) {
		f.log.Debug("a read that was given up has returned, when its cache was closed already", "sample", index)
	} else if err != nil {
		f.log.Error("a sample was read and could not be stored", "sample", index, "error", err)
	} else if result == cache.Stored || result == cache.Exists {
		f.tally.fills.add(time.Since(began))
		f.buffers.Put(buffer)
		return outcome{}
	}
	return outcome{data: &shared{bytes: data, giveUp: func() { f.buffers.Put(buffer) }}}
}

// unread is the outcome of a sample that the source could not read.
func unread(from source.Source, index int, err error) outcome {
	code := control.CodeRead
	switch {
	case errors.Is(err, source.ErrIndex):
		code = control.CodeIndex
	case errors.Is(err, source.ErrChanged):
		code = control.CodeChanged
	case errors.Is(err, source.ErrCorrupt):
		code = control.CodeDamaged
	case errors.Is(err, source.ErrClosed):
		code = control.CodeClosing
	}
	return failed(code, fmt.Errorf("sample %d (%s): %w", index, from.Where(index), err))
}

func failed(code control.Code, err error) outcome { return outcome{code: code, text: err.Error()} }

// strip drops the wants that need no turn any more.
func (q *queue) strip() {
	q.wants = slices.DeleteFunc(q.wants, func(w *want) bool { return w.done })
}

// push appends wants to a queue, but for those that are in it.
func (t *turns) push(q *queue, wants ...*want) {
	for _, w := range wants {
		if !w.queued {
			w.queued = true
			q.wants = append(q.wants, w)
		}
	}
	if !q.listed {
		q.listed = true
		t.ring = append(t.ring, q)
	}
}

// next takes one want of the next queue that has one to give; nil: none has.
func (t *turns) next() *want {
	for tries := len(t.ring); tries > 0; tries-- {
		q := t.ring[0]
		copy(t.ring, t.ring[1:])
		t.ring = t.ring[:len(t.ring)-1]
		for len(q.wants) > 0 && q.wants[0].done {
			q.wants = q.wants[1:]
		}
		if len(q.wants) == 0 {
			q.listed, q.wants = false, nil
			continue
		}
		t.ring = append(t.ring, q)
		if q.full() {
			continue
		}
		w := q.wants[0]
		w.queued, q.wants = false, q.wants[1:]
		return w
	}
	return nil
}

// clear empties all queues.
func (t *turns) clear() {
	for _, q := range t.ring {
		q.listed, q.wants = false, nil
	}
	t.ring = nil
}
