package tier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/writequeue"
	"github.com/stocached/stocached/source"
)

// queue has a tier and the samples that wait to be written to it.
type queue struct {
	tier Tier
	*writequeue.Queue[int]
}

// Set has the tiers of one cache, from fast to slow.
type Set struct {
	queues []queue // one for each tier
	once   sync.Once
	closed error
	shared Shared // the last tier that is shared; nil: none
	before int    // how many tiers come before it
}

// flushTime is how long Close writes what is in a queue. Tests shorten it.
var flushTime = 5 * time.Second

// writers of a queue: a tier may send what several write at a time with one call.
const writers = 4

// New makes a set of tiers. memory bounds the queue of each. The set owns the tiers.
func New(tiers []Tier, memory []int64) *Set {
	s := &Set{}
	for k, t := range tiers {
		q := writequeue.New(writequeue.Options[int]{Limit: memory[k], Writers: writers, Spare: Spare, Write: t.Put})
		s.queues = append(s.queues, queue{t, q})
		if shared, ok := t.(Shared); ok {
			s.shared, s.before = shared, k
		}
	}
	return s
}

// Status describes all tiers.
func (s *Set) Status() (all []Status) {
	for _, q := range s.queues {
		one := q.tier.Status()
		one.Dropped += q.Dropped()
		one.Queued = q.Bytes()
		all = append(all, one)
	}
	return all
}

// Problems returns a line for each node that is left out, and for each note of a tier, of tiers with these states.
func Problems(all []Status) (lines []string) {
	for k, one := range all {
		where := fmt.Sprintf("tiers[%d] (%s)", k, one.Kind)
		for _, n := range one.Nodes {
			if n.LeftOut {
				lines = append(lines, fmt.Sprintf("%s: %s is left out for %.0f s: %s", where, n.Address, n.Seconds,
					n.Because))
			}
		}
		for _, note := range one.Notes {
			lines = append(lines, where+": "+note)
		}
	}
	return lines
}

// Lacking returns those of the samples that no tier has. It asks no server: if one of the tiers is shared, it
// returns none.
func (s *Set) Lacking(indices []int) []int {
	if s.shared != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(indices), func(i int) bool {
		return slices.ContainsFunc(s.queues, func(q queue) bool { return q.tier.(Knowing).Has(i) })
	})
}

// Samples returns how many samples the tiers of this machine hold. All get the same ones, so it is the number of the
// largest. 0: unknown.
func (s *Set) Samples() (most int) {
	for _, q := range s.queues {
		if sized, ok := q.tier.(Sized); ok {
			most = max(most, sized.Samples())
		}
	}
	return most
}

// put writes a sample to the first n tiers, in the background, and says whether one takes it. What another node keeps
// goes only to a tier that machines share.
func (s *Set) put(ctx context.Context, n, i int, sample []byte) (taken bool) {
	elsewhere := source.IsKeptElsewhere(ctx)
	for _, q := range s.queues[:n] {
		if _, shared := q.tier.(Shared); elsewhere && !shared {
			continue
		}
		if q.tier.Accepts(i, len(sample)) && q.Put(i, sample) {
			taken = true
		} else if shared, ok := q.tier.(Shared); ok {
			shared.Release(i)
		}
	}
	return taken
}

// Close writes what is in the queues, for a bounded time, and closes the tiers.
func (s *Set) Close() error {
	s.once.Do(func() {
		var all sync.WaitGroup
		errs := make([]error, len(s.queues))
		for k, q := range s.queues {
			all.Go(func() {
				q.Close(flushTime)
				errs[k] = q.tier.Close()
			})
		}
		all.Wait()
		s.closed = errors.Join(errs...)
	})
	return s.closed
}
