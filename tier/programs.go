package tier

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stocached/stocached/source"
)

// Programs is a source of samples that programs load: all, or those that the source inside does not decode. Of all, Read
// gives those that tiers have, else source.ErrLoad. It also knows who loads a sample, one program at a time for each.
type Programs struct {
	around
	info   source.Info
	within time.Duration

	mu    sync.Mutex // protects the fields below
	loads map[int]load
	waits map[int]map[*wait]bool // for the ends of loads
}

// wait is for the end of any of some loads.
type wait struct {
	indices []int
	then    func() // nil: it was called
	timer   *time.Timer
}

// load is the load of a sample by a program. The zero value of by: the right to it is being asked for.
type load struct {
	by    any
	began time.Time
}

// NewPrograms makes a source of a source and the tiers of a set (nil: none). It owns both. A load
// that takes longer than within counts as failed.
func NewPrograms(s source.Source, set *Set, within time.Duration) *Programs {
	if set == nil {
		set = New(nil, nil)
	}
	return &Programs{around: around{Source: s, set: set, closing: make(chan struct{})}, info: s.Info(), within: within,
		loads: map[int]load{}, waits: map[int]map[*wait]bool{}}
}

// Read is part of source.Source.
func (p *Programs) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if p.info.Programs {
		ctx = source.TiersOnly(ctx)
	}
	return p.around.Read(ctx, i, dst)
}

// Begin says that the program which loads a sample does so from now on, and not other samples before.
func (p *Programs) Begin(i int) {
	p.mu.Lock()
	if one, loading := p.loads[i]; loading && one.by != nil {
		p.loads[i] = load{one.by, time.Now()}
	}
	p.mu.Unlock()
}

// Took returns how long the load of a sample takes so far; 0: no program loads it.
func (p *Programs) Took(i int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.loads[i]; one.by != nil {
		return time.Since(one.began)
	}
	return 0
}

// Claim gives a program the right to load a sample that Read has not found. true: it has the right, and MUST call
// Offer, Fail or Leave. false: another program or machine loads the sample, or has just done so.
func (p *Programs) Claim(ctx context.Context, i int, by any) bool {
	size, err := p.Size(i)
	if err != nil {
		return false
	}
	p.mu.Lock()
	if one, loading := p.loads[i]; loading {
		p.mu.Unlock()
		return one.by == by
	}
	p.loads[i] = load{}
	p.mu.Unlock()
	result := Claimed
	if shared := p.set.shared; shared != nil {
		room := p.take(size + Spare)
		_, result = shared.Claim(ctx, i, size, *room)
		p.scratch.Put(room)
	}
	if result == Hit || result == Busy {
		p.forget(i)
		return false
	}
	p.mu.Lock()
	p.loads[i] = load{by, time.Now()} // without the right too: a tier that fails keeps no program from its load
	p.mu.Unlock()
	return true
}

// forget ends the load of a sample, and the waits for it.
func (p *Programs) forget(i int) {
	p.mu.Lock()
	delete(p.loads, i)
	woken := p.wake(i)
	p.mu.Unlock()
	call(woken)
}

// Offer takes a sample that a program has loaded, and says whether a tier takes it. ErrInvalid: it is no
// sample of the cache.
func (p *Programs) Offer(i int, sample []byte) (bool, error) {
	size, err := p.Size(i)
	schema := &p.info.Schema
	switch {
	case err != nil:
	case schema.Variable && len(sample) > size:
		err = fmt.Errorf("%w: sample %d has %d bytes, those of the cache have %d at most", source.ErrInvalid, i, len(sample), size)
	case schema.Variable:
		if _, err = schema.Split(sample); err != nil {
			err = fmt.Errorf("%w: sample %d: %w", source.ErrInvalid, i, err)
		}
	case size != len(sample):
		err = fmt.Errorf("%w: sample %d has %d bytes, those of the cache have %d", source.ErrInvalid, i, len(sample), size)
	}
	if err != nil {
		return false, err
	}
	taken := p.set.put(context.Background(), len(p.set.queues), i, sample)
	p.forget(i)
	return taken, nil
}

// Fail ends the load of a sample that a program gives up, on any of its connections.
func (p *Programs) Fail(i int) { p.end(func(k int, _ load) bool { return k == i }) }

// Leave ends all loads of a program.
func (p *Programs) Leave(by any) { p.end(func(_ int, one load) bool { return one.by == by }) }

// Expire ends the loads that take too long, and returns their number.
func (p *Programs) Expire() int {
	return p.end(func(_ int, one load) bool { return time.Since(one.began) > p.within })
}

func (p *Programs) end(which func(i int, one load) bool) int {
	p.mu.Lock()
	var ended []int
	for i, one := range p.loads {
		if one.by != nil && which(i, one) {
			delete(p.loads, i)
			ended = append(ended, i)
		}
	}
	woken := p.wake(ended...)
	p.mu.Unlock()
	defer call(woken)
	for _, i := range ended {
		if shared := p.set.shared; shared != nil {
			shared.Release(i)
		}
	}
	return len(ended)
}

// WhenEnded calls then once: when a load of one of these samples ends, at the latest after most, or when the caller
// calls now. If programs of this server do not load all of these samples, now is nil, and then is never called.
func (p *Programs) WhenEnded(indices []int, most time.Duration, then func()) (now func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range indices {
		if _, loading := p.loads[i]; !loading {
			return nil
		}
	}
	w := &wait{indices: indices, then: then}
	for _, i := range indices {
		if p.waits[i] == nil {
			p.waits[i] = map[*wait]bool{}
		}
		p.waits[i][w] = true
	}
	now = func() {
		p.mu.Lock()
		then := p.endWait(w)
		p.mu.Unlock()
		call(then)
	}
	w.timer = time.AfterFunc(most, now)
	return now
}

// wake ends the waits for these samples, and returns what to call without the lock.
func (p *Programs) wake(indices ...int) (then []func()) {
	for _, i := range indices {
		for w := range p.waits[i] {
			then = append(then, p.endWait(w)...)
		}
	}
	return then
}

// endWait ends one wait.
func (p *Programs) endWait(w *wait) []func() {
	if w.then == nil {
		return nil
	}
	then := w.then
	w.then = nil
	w.timer.Stop()
	for _, i := range w.indices {
		if delete(p.waits[i], w); len(p.waits[i]) == 0 {
			delete(p.waits, i)
		}
	}
	return []func(){then}
}

func call(all []func()) {
	for _, one := range all {
		one()
	}
}
