package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"
)

// warmQueue hands out the samples that a cache does not have yet, and counts the results. It hands
// them out by index, the order that sources read fastest, and no more than fit into the cache. Safe
// for many goroutines.
type warmQueue struct {
	cache *stocclient.Served
	shape shm.Geometry
	batch int                              // samples of one batch
	ready uint64                           // samples that were in the cache before
	free  uint64                           // free bytes of the arena before
	tell  func(filled, bytes, goal uint64) // called with mu held after samples were filled

	mu       sync.Mutex // protects the fields below
	wake     sync.Cond  // a batch came back, or the queue has ended
	at       int        // the first sample whose state was not checked
	ahead    []int      // samples to hand out before those from at on
	room     int        // free slots without a request; unknown in an arena
	underWay int
	over     bool
	tries    map[int]int // tries of samples that got no slot although one was free

	full     bool   // no free slot or arena space is left
	short    bool   // no free memory is left
	filled   uint64 // samples that were handed out and are in the cache
	bytes    uint64 // bytes of these
	units    uint64 // units of these, in an arena
	failed   int
	failures []unfilled // the first mostFailures
	changed  bool       // one of them failed because the source has changed
}

// unfilled is a sample that could not be filled.
type unfilled struct {
	index int
	code  control.Code
	why   string
}

// slotTries is how often warm requests a sample that gets no slot although one seems free. Another
// process may be filling the sample. slotPause is the time between two tries.
const (
	slotTries = 10
	slotPause = 100 * time.Millisecond
)

func newWarmQueue(c *stocclient.Served, shape shm.Geometry, stats stocclient.Stats) *warmQueue {
	p := &warmQueue{cache: c, shape: shape, ready: stats.Ready, room: math.MaxInt, tries: map[int]int{},
		tell: func(uint64, uint64, uint64) {}}
	p.wake.L = &p.mu
	if shape.Variable() {
		p.free = shape.PayloadBytes - min(stats.ArenaNextBytes, shape.PayloadBytes)
	} else {
		p.room = int(shape.Slots - min(stats.Ready, shape.Slots))
	}
	// Some MB at a time: few messages for small samples, and a bar that moves for large ones.
	p.batch = min(max((4<<20)/max(c.Info().SampleBytes, 1), 4), 256)
	return p
}

// next returns samples to fill; none: the queue has ended.
func (p *warmQueue) next() ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.over {
			return nil, nil
		}
		batch, err := p.take(min(p.batch, p.room))
		if err != nil {
			p.over = true
			return nil, err
		}
		if len(batch) > 0 {
			p.underWay++
			if p.room != math.MaxInt {
				p.room -= len(batch)
			}
			return batch, nil
		}
		if p.underWay == 0 {
			p.over = true
			p.wake.Broadcast()
			return nil, nil
		}
		p.wake.Wait() // a batch under way may come back
	}
}

// take takes at most n samples that are not in the cache. The caller holds mu.
func (p *warmQueue) take(n int) (batch []int, err error) {
	k := min(n, len(p.ahead))
	batch = append(batch, p.ahead[:k]...)
	p.ahead = p.ahead[k:]
	var states [1024]stocclient.State
	for samples := p.cache.Info().Samples; len(batch) < n && p.at < samples; {
		seen := states[:min(len(states), samples-p.at)]
		if err := p.cache.Inspect().States(p.at, seen); err != nil {
			return nil, err
		}
		for _, state := range seen {
			if len(batch) == n {
				break
			}
			if state == stocclient.StateEmpty || state == stocclient.StateWriting {
				batch = append(batch, p.at)
			}
			p.at++
		}
	}
	return batch, nil
}

// stop ends the queue: next hands out nothing more.
func (p *warmQueue) stop() {
	p.mu.Lock()
	p.over = true
	p.wake.Broadcast()
	p.mu.Unlock()
}

// outcome is what became of the samples of a batch.
type outcome struct {
	there []int      // in the cache
	again []int      // without a slot: they are requested again
	bad   []unfilled // not to be filled
	room  bool       // for another sample, as far as is known
	short bool       // the server has no memory for another sample
}

// outcome finds out what became of a batch. failures are its samples that the server did not fill.
func (p *warmQueue) outcome(batch []int, failures []stocclient.FetchFailure) (o outcome, err error) {
	missing := map[int]bool{}
	o.room = true
	for _, f := range failures {
		missing[f.Index] = true
		if f.Code == control.CodeNoMemory {
			o.short = true
			continue
		}
		if f.Code != control.CodeNoSlot {
			o.bad = append(o.bad, unfilled{f.Index, f.Code, f.Text})
			continue
		}
		state, err := p.cache.Inspect().State(f.Index)
		if err != nil {
			return o, err
		}
		switch state {
		case stocclient.StateReady:
			delete(missing, f.Index) // another process has filled it
		case stocclient.StateEmpty, stocclient.StateWriting:
			if o.again = append(o.again, f.Index); state == stocclient.StateEmpty && o.room {
				if o.room, err = p.hasRoom(); err != nil {
					return o, err
				}
			}
		default:
			o.bad = append(o.bad, unfilled{f.Index, f.Code,
				fmt.Sprintf("sample %d: %s, and its state is %v", f.Index, f.Text, state)})
		}
	}
	o.there = slices.DeleteFunc(slices.Clone(batch), func(i int) bool { return missing[i] })
	return o, nil
}

// back counts the results of a batch. failures are its samples that the server did not fill.
func (p *warmQueue) back(ctx context.Context, batch []int, failures []stocclient.FetchFailure) error {
	o, err := p.outcome(batch, failures)
	if err != nil {
		return err
	}
	lengths := make([]uint64, len(o.there))
	if _, err := p.cache.Lengths(o.there, lengths); err != nil {
		return err
	}
	if o.room && len(o.again) > 0 {
		select {
		case <-time.After(slotPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underWay--
	p.filled += uint64(len(o.there))
	for _, n := range lengths {
		if n != stocclient.Miss { // Miss: a clear came in between
			p.bytes += n
			p.units += shm.UnitsFor(n)
		}
	}
	if p.room != math.MaxInt {
		p.room += len(batch) - len(o.there)
	}
	if !o.room {
		p.full, p.over = true, true
	}
	if o.short {
		p.short, p.over = true, true
	}
	for _, i := range o.again {
		if p.tries[i]++; p.tries[i] < slotTries {
			p.ahead = append(p.ahead, i)
			continue
		}
		o.bad = append(o.bad, unfilled{i, control.CodeNoSlot,
			fmt.Sprintf("sample %d: another client is filling it, for longer than %v", i, slotTries*slotPause)})
	}
	p.fail(o.bad)
	p.tell(p.filled, p.bytes, p.goal())
	p.wake.Broadcast()
	return nil
}

// fail counts samples that could not be filled. The caller holds mu.
func (p *warmQueue) fail(bad []unfilled) {
	p.failed += len(bad)
	for _, f := range bad {
		p.changed = p.changed || f.code == control.CodeChanged
		keepFirst(&p.failures, f, func(f unfilled) int { return f.index })
	}
}

// hasRoom says whether a sample of any size would get a slot, considering slots and arena only.
func (p *warmQueue) hasRoom() (bool, error) {
	stats, err := p.cache.Stats()
	if p.shape.Variable() {
		return p.shape.PayloadBytes-min(stats.ArenaNextBytes,
			p.shape.PayloadBytes) >= shm.UnitsFor(uint64(p.cache.Info().SampleBytes)+shm.UnitBytes)*shm.UnitBytes, err
	}
	return stats.Ready < p.shape.Slots, err
}

// goal estimates how many samples a full cache will hold. In an arena it assumes that the others
// are as large as those so far. The caller holds mu, or is the only goroutine.
func (p *warmQueue) goal() uint64 {
	if !p.shape.Variable() {
		return min(p.shape.Slots, p.shape.Samples)
	}
	if p.units == 0 {
		return p.shape.Samples
	}
	each := float64(p.units*shm.UnitBytes) / float64(p.filled)
	return min(p.shape.Samples, p.ready+max(p.filled, uint64(float64(p.free)/each)))
}
