// Package fill reads the samples of a cache from its source. It reads each sample once, however
// many clients ask for it at the same time.
//
// A Request (request.go) puts a waiter for each sample into the queue of its client (queue.go).
// Reader goroutines (reader.go) serve the queues round robin, fetches before prefetches. A reader
// takes one waiter, reads its sample, stores it in the cache and answers all waiters of that sample
// (filler.go). Clients get a sample without a slot as bytes. The package knows requesters only as
// an interface. It imports cache, source and shm, and control for the codes of answers.
package fill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// ErrEnding: the server or the cache is ending, and accepts no changes and plans.
var ErrEnding = errors.New("the server is ending")

// Filler reads samples of one cache from its source.
//
// A waiter goes into the queue of its requester, and onto the list of its sample. So a client that
// asks for much delays only its own samples. A cancelled waiter does not affect other waiters of
// its sample.
type Filler struct {
	cache *cache.Cache
	log   *slog.Logger
	stats *Stats
	side  sideBuffer

	mu         sync.Mutex // protects the fields below, and samples, waiters and readers
	source     *origin
	refused    func(error) // takes notice of samples that the cache refuses
	wake       sync.Cond   // there may be a sample to read
	inflight   map[key]*sample
	fetches    roundRobin
	prefetches roundRobin // served when no fetch can be served
	closing    bool

	readers
	buffers sync.Pool // holds *[]byte
}

// key is what waiters wait for.
type key struct {
	index int
	file  bool // not the sample, but the file that it is made of
}

// sample is one sample that has waiters. During its read it stays inflight, even without waiters,
// so that no second read of it starts.
type sample struct {
	waiters []*waiter
	reading bool
	cancel  context.CancelFunc // ends the read
}

// purpose says what a read is for. Waiters that come later do not change it.
type purpose struct {
	send     bool // a waiter needs the bytes of a sample that is stored
	freeOnly bool // no sample may lose its slot for it
	unstored bool // no waiter needs it in the cache
}

func (s *sample) purpose() purpose {
	p := purpose{freeOnly: true, unstored: true}
	for _, w := range s.waiters {
		p.send = p.send || w.request.Send
		p.freeOnly = p.freeOnly && w.request.FreeOnly
		p.unstored = p.unstored && w.request.Unstored
	}
	return p
}

// add appends a waiter to the list.
func (s *sample) add(w *waiter) {
	w.at = len(s.waiters)
	s.waiters = append(s.waiters, w)
}

// remove takes a waiter off the list. false: the waiter is not on the list.
func (s *sample) remove(w *waiter) bool {
	last := len(s.waiters) - 1
	if w.at > last || s.waiters[w.at] != w {
		return false
	}
	s.waiters[w.at] = s.waiters[last]
	s.waiters[w.at].at = w.at
	s.waiters[last] = nil
	s.waiters = s.waiters[:last]
	return true
}

// New makes a filler with the given number of readers. next is that of the cache's options. If it is
// not nil, the filler keeps samples without a slot aside, after SetSide. refused takes notice of samples that the cache
// refuses.
func New(c *cache.Cache, from source.Source, parallel int, next func(sample, soon uint64) uint64, stats *Stats,
	refused func(error), log *slog.Logger) *Filler {
	f := &Filler{cache: c, source: &origin{Source: from}, refused: refused, log: log, stats: stats, inflight: map[key]*sample{},
		side:    sideBuffer{next: next, life: c.Life, places: map[int]int{}},
		readers: readers{all: map[*reader]bool{}, left: make(chan struct{})}}
	f.wake.L = &f.mu
	f.buffers.New = func() any { return new([]byte) }
	f.Resize(parallel)
	return f
}

// SetSide sets how many bytes of samples without a slot the filler keeps for jobs that read them soon.
func (f *Filler) SetSide(most uint64) { f.side.resize(most) }

// Side returns how many bytes of such samples it keeps.
func (f *Filler) Side() uint64 { return f.side.held() }

// ExpireSide drops those that no job reads soon any more. The cache is open.
func (f *Filler) ExpireSide() { f.side.expire() }

// Leaves is for cache.Options: it keeps a victim aside, if a job reads it soon.
func (f *Filler) Leaves(sample, next uint64) {
	if next == 0 || next > sideReads || f.side.off() {
		return
	}
	if r, ok := f.copy(int(sample)); ok {
		f.side.keep(int(sample), r.data, true)
		r.data.Release()
	}
}

// Submit puts the waiters of a request into its queue, and returns their number. It answers at once
// for samples that are in the cache, unless the requester takes their bytes: readers copy these, as
// far as it can take them.
func (f *Filler) Submit(r *Request) int {
	var missing []*waiter
	for k := range r.waiters {
		w := &r.waiters[k]
		switch state, err := f.cache.State(w.index); {
		case err != nil:
			r.answer(w, failed(control.CodeIndex, err))
		case state == cache.StateReady && !r.Send && !r.Files:
			r.answer(w, result{})
		default:
			missing = append(missing, w)
		}
	}
	if len(missing) == 0 {
		return 0
	}
	f.mu.Lock()
	ending := f.closing
	if !ending {
		for _, w := range missing {
			f.add(w)
		}
		f.push(r.queue, missing...)
		for range min(len(missing), f.parallel) { // wake no more readers than samples are missing
			f.wake.Signal()
		}
	}
	f.mu.Unlock()
	if ending {
		for _, w := range missing {
			r.answer(w, closing)
		}
		return 0
	}
	return len(missing)
}

// push puts waiters into a queue. The caller holds mu.
func (f *Filler) push(q *Queue, waiters ...*waiter) {
	if q.prefetch {
		f.prefetches.push(q, waiters...)
	} else {
		f.fetches.push(q, waiters...)
	}
}

// add appends a waiter to the list of its sample. The caller holds mu.
func (f *Filler) add(w *waiter) {
	s := f.inflight[w.key()]
	if s == nil {
		s = &sample{}
		f.inflight[w.key()] = s
	}
	s.add(w)
}

// Cancel answers the waiters of a request that have no answer yet with CANCELLED. It cancels reads
// that have no other waiter. If a client asks for such a sample before the read has ended, it waits
// for that end, and the sample is read again.
func (f *Filler) Cancel(r *Request) {
	for _, w := range f.cancel(r) {
		r.answer(w, result{code: control.CodeCancelled, text: "cancelled"})
	}
}

// cancel removes and returns the waiters of a request that have no answer.
func (f *Filler) cancel(r *Request) (cancelled []*waiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range r.waiters {
		w := &r.waiters[k]
		s := f.inflight[w.key()]
		if w.done || s == nil || !s.remove(w) {
			continue
		}
		w.done = true
		cancelled = append(cancelled, w)
		switch {
		case len(s.waiters) > 0:
		case s.reading:
			s.cancel()
		default:
			delete(f.inflight, w.key())
		}
	}
	r.queue.strip() // else they would stay until the ring reaches this queue
	return cancelled
}

// Drained must be called when a requester can again take samples without a slot.
func (f *Filler) Drained() {
	f.mu.Lock()
	f.wake.Broadcast()
	f.mu.Unlock()
}

// Queued returns the number of samples that have waiters and whose read has not begun.
func (f *Filler) Queued() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.inflight {
		if !s.reading {
			n++
		}
	}
	return n
}

// Waiters returns the number of waiters in all queues.
func (f *Filler) Waiters() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetches.len() + f.prefetches.len()
}

// serve reads samples until the filler closes or has more readers than it needs.
func (f *Filler) serve(r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.leave(r)
	for len(f.all) <= f.parallel {
		w := f.fetches.next()
		if w == nil {
			w = f.prefetches.next()
		}
		if w == nil {
			if f.closing {
				return
			}
			f.wake.Wait()
			continue
		}
		s := f.inflight[w.key()]
		if w.done || s == nil || s.reading {
			continue // answered, cancelled, or another reader reads it
		}
		ctx, cancel := context.WithCancel(context.Background())
		s.reading, s.cancel = true, cancel
		r.sample, r.key, r.began = s, w.key(), time.Now()
		from, purpose := f.source, s.purpose()
		f.mu.Unlock()
		fault.At("fill.taken")
		var result result
		if w.request.Files {
			result = f.file(ctx, from, w.index)
		} else {
			result = f.read(ctx, from, w.index, purpose)
		}
		cancelled := ctx.Err() != nil
		cancel()
		f.mu.Lock()
		if r.sample = nil; r.givenUp {
			if result.data != nil {
				result.data.Release()
			}
			return
		}
		s.reading = false
		if result.code != 0 && (cancelled || result.code == control.CodeClosing && from != f.source) {
			// A new waiter came after the cancel, or SetSource has replaced the source: read the
			// sample again.
			if !f.closing && len(s.waiters) > 0 {
				for _, w := range s.waiters {
					f.push(w.request.queue, w)
				}
				continue
			}
			result = closing
		}
		delete(f.inflight, w.key())
		f.complete(w.key(), s.waiters, result)
	}
}

// complete answers the waiters of a sample. The caller holds mu; complete unlocks it
// while it answers.
func (f *Filler) complete(of key, waiters []*waiter, result result) {
	fetches := clients(waiters)
	if shared := fetches; result.code == 0 && shared > 0 {
		if !result.fetched {
			shared-- // the first one is why the source was read
		}
		f.stats.Shared.Add(uint64(shared))
	}
	result.alone = result.code == 0 && fetches == 0
	var answered, late []*waiter
	users := int32(0)
	for _, w := range waiters {
		needs := w.needs(result)
		// It came during a read that kept no bytes, or that was left out because no slot was free.
		again := result.stored && w.request.Send && !needs || result.noRoom() && !w.request.FreeOnly
		switch {
		case !again && !(needs && !w.request.by.CanTake(len(result.data.Bytes))):
			answered = append(answered, w)
			if needs {
				users++
			}
		case f.closing: // no reader will read the sample again
			late = append(late, w)
		default:
			// Or the client has enough bytes waiting. To read the sample again later costs less than
			// to keep it for an unknown time.
			f.add(w)
			f.push(w.request.queue, w)
			f.wake.Signal()
			continue
		}
		w.done = true
	}
	from := f.source
	f.mu.Unlock()
	if result.data != nil {
		result.data.users.Add(users)
	}
	for _, w := range answered {
		w.request.answer(w, f.loaded(from, w, result))
	}
	for _, w := range late {
		w.request.answer(w, closing)
	}
	fault.At("fill.answered")
	if result.data != nil {
		if !result.stored && !of.file {
			f.side.keep(of.index, result.data, result.fetched || fetches > 0)
		}
		result.data.Release()
	}
	f.mu.Lock()
}

// Claimer is a source whose samples programs load, one at a time for each sample.
type Claimer interface {
	Claim(ctx context.Context, i int, by any) bool
	Fail(i int)
}

// loading is the result of a sample that another program or machine loads.
var loading = result{code: control.CodeLoading, text: "another program or machine loads it; ask again"}

// loaded says whose program loads a sample that neither a tier nor the source has.
func (f *Filler) loaded(from *origin, w *waiter, r result) result {
	programs, ok := from.Source.(Claimer)
	if !ok || !r.programs || w.request.Loads == nil {
		return r
	}
	if !programs.Claim(context.Background(), w.index, w.request.Loads) {
		return loading
	}
	// Since read looked, the program that had the right may have stored the sample, and given the right back.
	if state, err := f.cache.State(w.index); err == nil && state == cache.StateReady {
		programs.Fail(w.index)
		return loading
	}
	r.code = control.CodeLoad
	return r
}

// clients returns how many clients fetch the sample of these waiters.
func clients(waiters []*waiter) (n int) {
	for k, w := range waiters {
		same := func(other *waiter) bool { return other.request.queue == w.request.queue }
		if !w.request.queue.prefetch && !slices.ContainsFunc(waiters[:k], same) {
			n++
		}
	}
	return n
}

// read reads a sample into a buffer and stores it with one write. Measured for 150,528 bytes in the
// page cache, 4 goroutines, 2 cores, in us, into new pages and into existing ones: this way 77 and
// 44. sendfile with the checksum over the map: 79 and 60. From a mapped file: 76 and 44, but its
// page faults would block a core when the disk is slow. In pieces of 32 KiB: 85 and 49.
func (f *Filler) read(ctx context.Context, from *origin, index int, why purpose) result {
	if state, err := f.cache.State(index); err == nil && state == cache.StateReady {
		if !why.send {
			return result{stored: true}
		}
		if r, ok := f.copy(index); ok {
			return r
		}
	}
	known, bad := from.bad.known(from, index)
	if bad && !known.programs {
		return known
	}
	if why.freeOnly { // else the sample would be read, and dropped
		if r := f.room(from.Source, index); r.noRoom() {
			return r
		}
	}
	if why.unstored {
		ctx = source.KeptElsewhere(ctx)
	}
	if bad {
		ctx = source.TiersOnly(ctx)
	}
	began := time.Now()
	data, fetched := f.side.take(index)
	kept := data != nil
	cost := loadtime.Cost{}
	if !kept {
		var err error
		cost = loadtime.MeasureIf(f.cache.MeasureNext(), ctx, func(ctx context.Context) {
			data, err = f.load(ctx, from.Source, index)
		})
		switch {
		case bad && errors.Is(err, source.ErrLoad):
			return known
		case err != nil:
			return f.unread(from, index, err)
		}
		f.stats.Loads.add(cost)
	}
	fault.At("fill.read")
	if why.unstored {
		return result{data: data, fetched: fetched}
	}
	there, short := f.store(index, data.Bytes, why.freeOnly, cost.All)
	if there && kept {
		f.side.forget(index)
	} else if there {
		f.stats.Fills.add(time.Since(began))
	}
	if there && !why.send && !f.cache.Evicts() { // else a waiter that comes later might have it read again
		data.Release()
		return result{stored: true}
	}
	return result{data: data, stored: there, short: short, fetched: fetched}
}

// file reads the file of a sample, as a client decodes it.
func (f *Filler) file(ctx context.Context, from *origin, index int) result {
	var data []byte
	unused, err := f.load(source.WantFile(ctx, &data), from.Source, index)
	if err != nil {
		return f.unread(from, index, err)
	}
	unused.Release()
	if data == nil {
		return result{code: control.CodeInvalid, text: "the server has no files of this cache's samples"}
	}
	b := &Buffer{Bytes: data, free: func() {}} // files differ in size, so none is kept for the next
	b.users.Store(1)
	return result{data: b}
}

// room returns noSlot or noMemory for a sample that cannot be stored without an eviction.
func (f *Filler) room(from source.Source, index int) result {
	size, err := from.Size(index)
	switch {
	case err != nil: // the read tells
	case !f.cache.HasSpace(index, uint64(size)):
		return noSlot
	case errors.Is(f.cache.HasMemory(uint64(size)), shm.ErrFull):
		return noMemory
	}
	return result{}
}

// store stores a sample, whose load took so long, and says whether the cache has it now, or memory is short. freeOnly: no
// other sample may lose its slot.
func (f *Filler) store(index int, data []byte, freeOnly bool, took time.Duration) (there, short bool) {
	var stored cache.Result
	var err error
	if freeOnly {
		stored, err = f.cache.SetFree(index, data, took)
	} else {
		parts := [1][]byte{data}
		stored, err = f.cache.SetLoaded(index, parts[:], 0, took)
	}
	fault.At("fill.stored")
	if errors.Is(err, shm.ErrClosed) {
		f.log.Debug("a read that was given up has returned after its cache was closed", "sample", index)
	} else if err != nil {
		f.mu.Lock()
		tell := f.refused
		f.mu.Unlock()
		tell(fmt.Errorf("sample %d: %w", index, err))
	}
	if err == nil && stored == cache.Full {
		n := uint64(len(data))
		short = f.cache.HasSpace(index, n) && errors.Is(f.cache.HasMemory(n), shm.ErrFull)
	}
	return err == nil && (stored == cache.Stored || stored == cache.Exists), short
}

// load reads a sample from its source. The caller releases it if err is nil.
func (f *Filler) load(ctx context.Context, from source.Source, index int) (*Buffer, error) {
	size, err := from.Size(index)
	if err != nil {
		return nil, err
	}
	buffer := f.take(size + source.Spare)
	n, err := from.Read(ctx, index, *buffer)
	if err != nil {
		f.buffers.Put(buffer)
		return nil, err
	}
	return f.buffer(buffer, (*buffer)[:n]), nil
}

// copy copies a sample of the cache. false: it is not there any more.
func (f *Filler) copy(index int) (result, bool) {
	var buffer *[]byte
	data, hit, err := f.cache.ReadOwn(index, f.cache.Copy, func(n int) []byte {
		buffer = f.take(n)
		return *buffer
	})
	switch {
	case hit && err == nil:
		return result{data: f.buffer(buffer, data), stored: true}, true
	case buffer != nil:
		f.buffers.Put(buffer)
	}
	return result{}, false
}

// take returns a buffer of n bytes.
func (f *Filler) take(n int) *[]byte {
	buffer := f.buffers.Get().(*[]byte)
	if cap(*buffer) < n {
		*buffer = make([]byte, n)
	}
	*buffer = (*buffer)[:n]
	return buffer
}

// buffer makes the Buffer of bytes in a buffer that take has returned. Its one user is the caller.
func (f *Filler) buffer(buffer *[]byte, data []byte) *Buffer {
	b := &Buffer{Bytes: data, free: func() { f.buffers.Put(buffer) }}
	b.users.Store(1)
	return b
}

// unread is the result of a sample that the source could not read.
func (f *Filler) unread(from *origin, index int, err error) result {
	if e := (*source.BadError)(nil); errors.As(err, &e) {
		from.bad.add(f.log, index, e)
		return failed(control.CodeBad, e)
	}
	if e := (*source.KindError)(nil); errors.As(err, &e) {
		from.bad.addFormat(f.log, index, e)
		r, _ := from.bad.known(from, index)
		return r
	}
	code := control.CodeRead
	switch {
	case errors.Is(err, source.ErrIndex):
		code = control.CodeIndex
	case errors.Is(err, source.ErrChanged):
		code = control.CodeChanged
	case errors.Is(err, source.ErrCorrupt):
		code = control.CodeDamaged
	case errors.Is(err, source.ErrLoad):
		code = control.CodeLoad
	case errors.Is(err, source.ErrClosed):
		code = control.CodeClosing
	}
	r := failed(code, fmt.Errorf("sample %d (%s): %w", index, from.Where(index), err))
	r.programs = code == control.CodeLoad
	return r
}
