package fill

import (
	"fmt"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/source"
)

// readers are the reader goroutines of a filler. The mutex of the filler protects the fields.
type readers struct {
	parallel int              // number of readers that the filler needs
	all      map[*reader]bool // all readers, except those whose read was given up
	stuck    int              // readers whose read was given up and has not returned yet
	left     chan struct{}    // closed when the filler is closing and all is empty
}

// reader is one goroutine that reads samples.
type reader struct {
	sample  *sample // the sample that it reads; nil: none
	key     key     // the key of the sample
	began   time.Time
	givenUp bool // its waiters have answers, and another reader has replaced it
}

// maxStuck bounds the goroutines and buffers of a cache whose source hangs. When so many reads that
// were given up have not returned, the filler starts no more readers.
const maxStuck = 64

// Resize sets the number of readers.
func (f *Filler) Resize(parallel int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parallel = parallel
	f.startReaders()
	f.wake.Broadcast() // readers above that number end
}

// startReaders starts readers up to that number. The caller holds mu.
func (f *Filler) startReaders() {
	for !f.closing && len(f.all) < f.parallel && f.stuck < maxStuck {
		r := &reader{}
		f.all[r] = true
		go f.serve(r)
	}
}

// leave ends a reader. The caller holds mu.
func (f *Filler) leave(r *reader) {
	if r.givenUp {
		f.stuck--
		f.startReaders()
		return
	}
	delete(f.all, r)
	f.tellLast()
}

// tellLast wakes Close when the last reader that Close waits for has ended. The caller holds mu.
func (f *Filler) tellLast() {
	if f.closing && len(f.all) == 0 {
		select {
		case <-f.left:
		default:
			close(f.left)
		}
	}
}

// abandoned is a read that was given up, and its waiters.
type abandoned struct {
	key
	waiters []*waiter
}

// abandon gives up the read of a reader. The caller holds mu.
func (f *Filler) abandon(r *reader) abandoned {
	s := r.sample
	r.givenUp = true
	delete(f.all, r)
	f.stuck++
	s.cancel() // the source may obey the context
	given := abandoned{r.key, s.waiters}
	for _, w := range s.waiters {
		w.done = true
	}
	s.waiters = nil
	if f.inflight[r.key] == s {
		delete(f.inflight, r.key)
	}
	f.tellLast()
	return given
}

// drop takes all samples that no reader will read, because there is no reader or the filler closes.
// The caller holds mu.
func (f *Filler) drop() (left []abandoned) {
	for of, s := range f.inflight {
		if !s.reading {
			left = append(left, abandoned{of, s.waiters})
			delete(f.inflight, of)
			for _, w := range s.waiters {
				w.done = true
			}
		}
	}
	f.fetches.clear()
	f.prefetches.clear()
	return left
}

// GiveUp fails the waiters of reads that take longer than limit, replaces their readers, and
// returns the number of these reads. Such a read may hang in the kernel, where no call can end it.
// If it returns later, its sample is stored. When too many reads hang, GiveUp fails the waiters of
// all other samples too.
func (f *Filler) GiveUp(limit time.Duration) (n int) {
	var slow, queued []abandoned
	f.mu.Lock()
	for r := range f.all {
		if r.sample != nil && time.Since(r.began) >= limit {
			slow = append(slow, f.abandon(r))
		}
	}
	f.stats.GivenUp.Add(uint64(len(slow)))
	f.startReaders()
	if len(f.all) == 0 && !f.closing {
		queued = f.drop()
	}
	from, stuck := f.source, f.stuck
	f.mu.Unlock()
	for _, r := range slow {
		f.fail(r, control.CodeRead, "sample %d (%s): the read took more than %v and was given up; check whether "+
			"the disk or network of the source answers (read_timeout)", r.index,
			from.Where(r.index), limit)
	}
	for _, r := range queued {
		f.fail(r, control.CodeRead,
			"sample %d (%s): %d reads of this source hang, so the server begins no more; check "+
				"whether the disk or network of the source answers", r.index, from.Where(r.index), stuck)
	}
	return len(slow)
}

// fail answers the waiters of a read.
func (f *Filler) fail(r abandoned, code control.Code, format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	for _, w := range r.waiters {
		w.request.answer(w, result{code: code, text: text})
	}
}

// SetSource makes later reads use another source. It returns the one before, which earlier reads
// may still use.
func (f *Filler) SetSource(s source.Source, refused func(error)) (before source.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.source, f.refused = f.source.Source, &origin{Source: s}, refused
	return before
}

// Stuck returns the number of reads that were given up and have not returned.
func (f *Filler) Stuck() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stuck
}

// Close fails queued samples, waits at most wait for reads under way, and fails the rest. When it
// returns, only stuck readers, if any, still use the source.
func (f *Filler) Close(wait time.Duration) (stuck int) {
	f.mu.Lock()
	f.closing = true
	left := f.drop()
	f.tellLast()
	f.wake.Broadcast()
	f.mu.Unlock()
	for _, r := range left {
		f.fail(r, closing.code, "%s", closing.text)
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-f.left:
		case <-timer.C:
		}
	}
	left = nil
	f.mu.Lock()
	for r := range f.all {
		if r.sample != nil {
			left = append(left, f.abandon(r))
		}
	}
	f.mu.Unlock()
	for _, r := range left {
		f.fail(r, closing.code, "%s", closing.text)
	}
	<-f.left
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stuck
}

// Readers returns the number of readers without the stuck ones.
func (f *Filler) Readers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}
