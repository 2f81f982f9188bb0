package simulate

import "github.com/stocached/stocached/policy"

// What a server does, as docs/spec/policies.md (the side buffer) and docs/spec/control.md (ANNOUNCE) say.
const (
	sidePart  = 16       // the side buffer has so small a part of the room,
	sideMost  = 64 << 20 // and at most so many bytes
	sideReads = 1024     // it keeps samples that a job reads so soon
)

// served is a cache of samples of one size behind a server. The jobs read in turn, in batches. A read of
// the source takes as long as the job needs for a batch, and serves all jobs that read the sample in that time.
// With the policy planned, the server has a side buffer, and a batch under way counts as not read. What it reads
// ahead is left out: mostly it comes a little before the batch that asks for it.
type served struct {
	*policyCache
	at     int      // reads of all jobs so far, the present one too
	batch  int      // reads of all jobs in which a job reads a batch
	begun  []uint32 // when the source was last read for each sample, from 1; 0: never
	side   side
	shared uint64 // reads of samples without a slot that needed no read of the source
	// of the policy planned: a sample that was read in the last behind reads of all jobs counts as not read
	behind    int
	lastReads []uint32 // when each sample was last read, from 1; 0: never
}

// newServed makes a cache behind a server. plans are those of its jobs; nil: the policy needs none.
func newServed(t *Trace, o *Options, kind policy.Kind, room uint64, plans *future) *served {
	s := &served{policyCache: newPolicyCache(t, o, kind, room), batch: t.Jobs * o.Served, begun: make([]uint32, t.Samples)}
	if plans == nil {
		return s
	}
	s.behind, s.lastReads = t.Jobs*int(min(max(uint64(o.Served), 1), max(room/8, 1))), make([]uint32, t.Samples)
	s.next = func(sample uint32) uint64 {
		if last := int(s.lastReads[sample]); last > 0 && s.at-last < s.behind {
			return 1
		}
		return plans.next(sample)
	}
	most := room / sidePart
	if t.SampleBytes > 0 {
		most = min(most, sideMost/t.SampleBytes)
	}
	s.side = side{most: int(most), rule: policy.KindPlanned.New(0, o.Seed).Rule(), places: map[uint32]int{}, next: s.next,
		within: sideReads * uint64(t.Jobs)}
	s.lost = s.side.keep
	return s
}

func (s *served) access(sample uint32, epoch int) bool {
	s.at++
	hit := s.slotOf[sample] >= 0 || s.shares(sample)
	if !hit {
		s.begun[sample] = uint32(s.at)
	}
	if s.lastReads != nil {
		s.lastReads[sample] = uint32(s.at)
	}
	s.policyCache.access(sample, epoch)
	s.settle(sample)
	return hit
}

// shares says whether a sample without a slot needs no read of the source.
func (s *served) shares(sample uint32) bool {
	underWay := s.begun[sample] > 0 && s.at-int(s.begun[sample]) < s.batch
	if !underWay && !s.side.has(sample) {
		return false
	}
	s.shared++
	return true
}

// settle moves a sample into the side buffer, or out of it.
func (s *served) settle(sample uint32) {
	if s.side.most == 0 {
		return
	}
	if s.slotOf[sample] >= 0 {
		s.side.drop(sample)
	} else {
		s.lost(sample)
	}
}

// side is the side buffer of a server.
type side struct {
	most    int
	rule    policy.Rule
	hand    uint64
	pool    policy.Pool
	samples []uint32
	places  map[uint32]int
	next    func(sample uint32) uint64 // as policy.Candidate has it, in reads of all jobs
	within  uint64                     // how soon a sample is read that it keeps
}

func (b *side) has(sample uint32) bool {
	_, kept := b.places[sample]
	return kept
}

// keep keeps a sample, if it is read soon.
func (b *side) keep(sample uint32) {
	next := b.next(sample)
	if next > b.within || b.has(sample) || b.most == 0 {
		return
	}
	if len(b.samples) == b.most {
		newcomer := policy.Candidate{Sample: uint64(sample), Next: next}
		s := policy.NewSearch(b.rule, newcomer, 0, uint64(len(b.samples)), &b.pool)
		for ; !s.Done(); b.hand++ {
			place := s.Slot(b.hand)
			other := b.samples[place]
			s.Look(b.hand, place, policy.Candidate{Sample: uint64(other), Next: b.next(other)})
		}
		victim, _, ok := s.Victim()
		if !ok {
			return
		}
		b.drop(uint32(victim.Sample))
	}
	b.places[sample] = len(b.samples)
	b.samples = append(b.samples, sample)
}

func (b *side) drop(sample uint32) {
	place, kept := b.places[sample]
	if !kept {
		return
	}
	last := len(b.samples) - 1
	b.samples[place] = b.samples[last]
	b.places[b.samples[place]] = place
	b.samples = b.samples[:last]
	delete(b.places, sample)
}
