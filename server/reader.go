package server

import (
	"fmt"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/source"
)

// readers are the goroutines of a filler that read, under its mutex.
type readers struct {
	parallel int              // how many there are to be
	all      map[*reader]bool // that there are, without those whose read was given up
	stuck    int              // those whose read was given up, and has not returned yet
	left     chan struct{}    // closed when the filler has closed and all is empty
}

// reader is one of them.
type reader struct {
	flight  *flight // that it is at; nil: none
	index   int     // of its sample
	began   time.Time
	givenUp bool // it was answered for, and another reader has taken its place
}

// maxStuck bounds the goroutines and buffers of a cache whose source takes reads and gives nothing back: when so many reads were given up and have not returned, nobody takes the
// place of the next one.
const maxStuck = 64

// resize makes the readers so many.
func (f *filler) resize(parallel int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parallel = parallel
	f.hire()
	f.wake.Broadcast() // those that are too many end
}

// hire begins readers until there are as many as there are to be. With mu held.
func (f *filler) hire() {
	for !f.closing && len(f.all) < f.parallel && f.stuck < maxStuck {
		r := &reader{}
		f.all[r] = true
		go f.work(r)
	}
}

// leave ends a reader. With mu held.
func (f *filler) leave(r *reader) {
	if r.givenUp {
		f.stuck--
		f.hire()
		return
	}
	delete(f.all, r)
	f.tellLast()
}

// tellLast tells close when no reader is left that it has to wait for. With mu held.
func (f *filler) tellLast() {
	if f.closing && len(f.all) == 0 {
		select {
		case <-f.left:
		default:
			close(f.left)
		}
	}
}

// read is a read that was given up, and those who waited for it.
type read struct {
	index int
	wants []*want
}

// abandon takes a reader from its read. With mu held.
func (f *filler) abandon(r *reader) read {
	fl := r.flight
	r.givenUp = true
	delete(f.all, r)
	f.stuck++
	fl.cancel() // it may listen
	given := read{r.index, fl.wants}
	for _, w := range fl.wants {
		w.done = true
	}
	fl.wants = nil
	if f.flights[r.index] == fl {
		delete(f.flights, r.index)
	}
	f.tellLast()
	return given
}

// drop takes all flights that are not being read, when nobody is going to: for lack of readers, or at the end. With mu held.
func (f *filler) drop() (left []read) {
	for index, fl := range f.flights {
		if !fl.running {
			left = append(left, read{index, fl.wants})
			delete(f.flights, index)
			for _, w := range fl.wants {
				w.done = true
			}
		}
	}
	f.now.clear()
	f.later.clear()
	return left
}

// giveUp answers for reads that take longer than limit, puts other readers into the place of theirs, and returns how many it were. Such a read may hang in the kernel, where nothing
// ends it: if it does return, what it brings is stored. When too many have not, who waits for a reader is answered as well.
func (f *filler) giveUp(limit time.Duration) (n int) {
	var slow, queued []read
	f.mu.Lock()
	for r := range f.all {
		if r.flight != nil && time.Since(r.began) >= limit {
			slow = append(slow, f.abandon(r))
		}
	}
	f.tally.gaveUp.Add(uint64(len(slow)))
	f.hire()
	if len(f.all) == 0 && !f.closing {
		queued = f.drop()
	}
	from, stuck := f.source, f.stuck
	f.mu.Unlock()
	for _, r := range slow {
		f.fail(r, control.CodeRead, "sample %d (%s): the read has taken more than %v and was given up; see whether the disk or network behind it answers (read_timeout)", r.index,
			from.Where(r.index), limit)
	}
	for _, r := range queued {
		f.fail(r, control.CodeRead, "sample %d (%s): %d reads of this source hang, so no more are begun; see whether the disk or network behind it answers", r.index, from.Where(r.index), stuck)
	}
	return len(slow)
}

// fail answers those who wait for a read.
func (f *filler) fail(r read, code control.Code, format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	for _, w := range r.wants {
		w.request.finish(w, outcome{code: code, text: text})
	}
}

// use makes another source that of reads from now on, and returns the one before, which may still be read from.
func (f *filler) use(s source.Source) (before source.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.source = f.source, s
	return before
}

// hung returns how many reads were given up and have not returned.
func (f *filler) hung() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stuck
}

// close fails what is queued, waits for reads under way, at most so long, and fails those that are left. Readers have ended then, but those that are stuck: they touch the source.
func (f *filler) close(wait time.Duration) (stuck int) {
	f.mu.Lock()
	f.closing = true
	left := f.drop()
	f.tellLast()
	f.wake.Broadcast()
	f.mu.Unlock()
	for _, r := range left {
		f.fail(r, ending.code, "%s", ending.text)
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
		if r.flight != nil {
			left = append(left, f.abandon(r))
		}
	}
	f.mu.Unlock()
	for _, r := range left {
		f.fail(r, ending.code, "%s", ending.text)
	}
	<-f.left
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stuck
}
