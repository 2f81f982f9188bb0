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
	jobs   int
	at     int      // number of the present read, of all jobs
	batch  int      // reads of all jobs in which a job reads a batch
	begun  []uint32 // when the source was last read for each sample, from 1; 0: never
	side   side
	shared uint64 // reads of samples without a slot that needed no read of the source
}

func newServed(t *Trace, o *Options, kind policy.Kind, room uint64) *served {
	s := &served{policyCache: newPolicyCache(t, o, kind, room), jobs: t.Jobs, batch: t.Jobs * o.Served,
		begun: make([]uint32, t.Samples)}
	if s.plans == nil {
		return s
	}
	s.behind, s.lastReads = uint32(t.Jobs)*uint32(min(max(uint64(o.Served), 1), max(room/8, 1))), make([]uint32, t.Samples)
	most := room / sidePart
	if t.SampleBytes > 0 {
		most = min(most, sideMost/t.SampleBytes)
	}
	s.side = side{most: int(most), seed: o.Seed, places: map[uint32]int{}, next: func(sample uint32) uint32 {
		if s.underWay(sample) {
			return 1
		}
		return s.plans.of[sample] - uint32(min(s.at, int(s.plans.of[sample])))
	}}
	s.lost = func(sample uint32) { s.side.keep(sample, sideReads*uint32(t.Jobs)) }
	return s
}

func (s *served) access(sample uint32, epoch int) bool {
	hit := s.slotOf[sample] >= 0 || s.shares(sample)
	if !hit {
		s.begun[sample] = uint32(s.at) + 1
	}
	if s.lastReads != nil {
		s.lastReads[sample] = uint32(s.at) + 1
	}
	s.at++
	s.policyCache.access(sample, epoch)
	s.settle(sample)
	return hit
}

// shares says whether a sample without a slot needs no read of the source.
func (s *served) shares(sample uint32) bool {
	underWay := s.begun[sample] > 0 && s.at+1-int(s.begun[sample]) < s.batch
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
	seed    uint64
	hand    uint64
	samples []uint32
	places  map[uint32]int
	next    func(sample uint32) uint32 // in how many reads of all jobs it is read
}

func (b *side) has(sample uint32) bool {
	_, kept := b.places[sample]
	return kept
}

// keep keeps a sample that is read within so many reads of all jobs.
func (b *side) keep(sample, within uint32) {
	next := b.next(sample)
	if next > within || b.has(sample) || b.most == 0 {
		return
	}
	if len(b.samples) == b.most {
		last, victim := uint32(0), sample
		for range 64 {
			other := b.samples[policy.RandomSlot(b.seed, b.hand, uint64(len(b.samples)))]
			b.hand++
			if n := b.next(other); n > last {
				last, victim = n, other
			}
		}
		if next >= last {
			return
		}
		b.drop(victim)
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
