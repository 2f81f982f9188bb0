package fill

import (
	"sync"

	"github.com/stocached/stocached/policy"
)

// sideReads is how soon a job reads a sample that the side buffer keeps, in reads of the fastest job.
const sideReads = 1024

// sideBuffer keeps samples without a slot that jobs read soon, so that one read of the source is
// enough for all jobs. If it is full, it decides as a cache with the policy planned:
// docs/spec/policies.md.
type sideBuffer struct {
	next func(sample, soon uint64) uint64 // as in cache.Options; nil: it keeps nothing
	life func() uint64                    // life of the cache, between two clears

	mu      sync.Mutex // protects the fields below
	most    uint64     // bytes that it may keep
	bytes   uint64     // bytes kept
	hand    uint64
	pool    policy.Pool
	samples []sideSample
	places  map[int]int // position of each sample in samples
}

type sideSample struct {
	index   int
	data    *Buffer
	fetched bool // a client has fetched it already
	life    uint64
}

// plannedRule finds the sample that leaves a full side buffer.
var plannedRule = policy.KindPlanned.New(0, 0).Rule()

// resize sets how many bytes the side buffer may keep.
func (b *sideBuffer) resize(most uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
	for b.bytes > b.most {
		b.drop(len(b.samples) - 1)
	}
}

// wants says whether a sample of n bytes may stay, and makes room for it. next is that of the sample.
// The caller holds mu.
func (b *sideBuffer) wants(index, n int, next uint64) bool {
	if next == 0 || next > sideReads || uint64(n) > b.most {
		return false
	}
	newcomer := policy.Candidate{Sample: uint64(index), Next: next}
	for b.bytes+uint64(n) > b.most {
		s := policy.NewSearch(plannedRule, newcomer, 0, uint64(len(b.samples)), &b.pool)
		for !s.Done() {
			number := b.hand
			b.hand++
			place := s.Slot(number)
			held := policy.Candidate{Sample: uint64(b.samples[place].index)}
			if held.Next = b.next(held.Sample, s.Soon()); b.samples[place].life != b.life() {
				held.Next = policy.Unread
			}
			s.Look(number, place, held)
		}
		_, place, ok := s.Victim()
		if !ok {
			return false
		}
		b.drop(int(place))
	}
	return true
}

// keep keeps a sample that has no slot, if a job reads it soon. It holds data as a further user.
// fetched: a client has got it.
func (b *sideBuffer) keep(index int, data *Buffer, fetched bool) {
	if b.next == nil {
		return
	}
	next := b.next(uint64(index), 0)
	b.mu.Lock()
	defer b.mu.Unlock()
	if place, kept := b.places[index]; kept {
		fetched = fetched || b.samples[place].fetched
		b.drop(place)
	}
	if !b.wants(index, cap(data.Bytes), next) {
		return
	}
	data.users.Add(1)
	b.places[index] = len(b.samples)
	b.samples = append(b.samples, sideSample{index, data, fetched, b.life()})
	b.bytes += uint64(cap(data.Bytes))
}

// take returns a sample, with the caller as a further user, and whether a client has fetched it before.
// nil: the side buffer does not have it.
func (b *sideBuffer) take(index int) (data *Buffer, fetched bool) {
	if b.next == nil {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	place, kept := b.places[index]
	if !kept {
		return nil, false
	}
	s := &b.samples[place]
	if s.life != b.life() {
		b.drop(place)
		return nil, false
	}
	s.data.users.Add(1)
	return s.data, s.fetched
}

// forget drops a sample, which has a slot now.
func (b *sideBuffer) forget(index int) {
	if b.next == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if place, kept := b.places[index]; kept {
		b.drop(place)
	}
}

// drop drops the sample at a place. The caller holds mu.
func (b *sideBuffer) drop(place int) {
	gone, last := b.samples[place], len(b.samples)-1
	b.samples[place] = b.samples[last]
	b.places[b.samples[place].index] = place
	b.samples[last] = sideSample{}
	b.samples = b.samples[:last]
	delete(b.places, gone.index)
	b.bytes -= uint64(cap(gone.data.Bytes))
	gone.data.Release()
}

// expire drops the samples that no job reads soon, such as those of a job that has ended.
func (b *sideBuffer) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for place := len(b.samples) - 1; place >= 0; place-- {
		if next := b.next(uint64(b.samples[place].index), 0); next == 0 || next > sideReads {
			b.drop(place)
		}
	}
}

// off says whether it keeps nothing.
func (b *sideBuffer) off() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most == 0
}

// held returns how many bytes the side buffer keeps.
func (b *sideBuffer) held() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}
