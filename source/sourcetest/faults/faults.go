// Package faults makes the reads of a source fail, wait and return wrong bytes. It is for tests of
// programs that read from sources, above all of servers.
//
//	f := faults.Wrap(s, faults.Rule{Every: 3, Err: unix.EIO}, faults.Rule{Samples: []int{7}, Delay: time.Second})
//	f.Set(faults.Rule{Stuck: stuck}) // replaces the rules
//	close(stuck)                     // these reads continue
//	f.Reads(7)                       // number of reads of sample 7
package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/source"
)

// Rule says which reads have a fault, and which fault. Several faults of a rule apply in the order
// of its fields.
type Rule struct {
	Samples []int // reads of these samples; nil: of all
	Every   int   // only the n-th of those, the 2n-th and so on; 0: each
	Times   int   // at most this number of reads; 0: no limit

	Delay time.Duration // before the read; the reader's context ends it
	// Stuck blocks the read until the channel is closed. Neither context nor Close ends it, like a
	// system call on a hanging device.
	Stuck <-chan struct{}
	Err   error // returned instead of a read
}

// Source is a source with faults. It is safe for concurrent use.
type Source struct {
	source.Source
	reads []atomic.Int64 // by sample

	mu    sync.Mutex
	rules []*state
}

// state is a rule with its counters.
type state struct {
	Rule
	matched, met int
}

// Wrap adds faults to a source. All rules that match a read apply, in their order.
func Wrap(s source.Source, rules ...Rule) *Source {
	f := &Source{Source: s, reads: make([]atomic.Int64, s.Info().Samples)}
	f.Set(rules...)
	return f
}

// Blocks returns f as a source with blocks, or nil if its source has none. The rules of a block are
// those of its first sample. A block counts as a read of each of its samples that ReadBlock passes
// on.
func (f *Source) Blocks() source.Blocks {
	if inner, ok := f.Source.(source.Blocks); ok {
		return &blocks{f, inner}
	}
	return nil
}

// Set replaces the rules. Reads that have begun keep the old ones.
func (f *Source) Set(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	for _, r := range rules {
		f.rules = append(f.rules, &state{Rule: r})
	}
}

// Reads returns the number of reads of sample i, failed ones too.
func (f *Source) Reads(i int) int { return int(f.reads[i].Load()) }

// TotalReads returns the number of reads of all samples.
func (f *Source) TotalReads() (total int) {
	for i := range f.reads {
		total += f.Reads(i)
	}
	return total
}

// Read reads sample i unless a rule gives a fault.
func (f *Source) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if i >= 0 && i < len(f.reads) {
		f.reads[i].Add(1)
	}
	if err := f.enter(ctx, i); err != nil {
		return 0, err
	}
	return f.Source.Read(ctx, i, dst)
}

// enter applies the rules.
func (f *Source) enter(ctx context.Context, i int) error {
	for _, r := range f.match(i) {
		if r.Delay > 0 {
			timer := time.NewTimer(r.Delay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			}
		}
		if r.Stuck != nil {
			<-r.Stuck
		}
		if r.Err != nil {
			return fmt.Errorf("%w, by a rule for tests, reading %s", r.Err, f.Where(i))
		}
	}
	return nil
}

func (f *Source) match(i int) (met []Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.Samples != nil && !slices.Contains(r.Samples, i) {
			continue
		}
		r.matched++
		if r.Every > 1 && r.matched%r.Every != 0 || r.Times > 0 && r.met == r.Times {
			continue
		}
		r.met++
		met = append(met, r.Rule)
	}
	return met
}

type blocks struct {
	*Source
	inner source.Blocks
}

func (b *blocks) Blocks() int                { return b.inner.Blocks() }
func (b *blocks) BlockOf(i int) int          { return b.inner.BlockOf(i) }
func (b *blocks) Block(k int) (first, n int) { return b.inner.Block(k) }

func (b *blocks) ReadBlock(ctx context.Context, k int, each func(i int, sample []byte) error) error {
	first, n := b.Block(k)
	if n == 0 {
		return b.inner.ReadBlock(ctx, k, each)
	}
	if err := b.enter(ctx, first); err != nil {
		return err
	}
	return b.inner.ReadBlock(ctx, k, func(i int, sample []byte) error {
		b.reads[i].Add(1)
		return each(i, sample)
	})
}
