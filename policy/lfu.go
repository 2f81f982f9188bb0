package policy

// lfu takes the sample of a few random ones that has the fewest hits. The reference byte counts hits,
// the more hits the more rarely, as Redis does it. A look takes away from it now and then, so that
// samples that are no longer read go.
type lfu struct {
	sampled
	always
}

func newLFU(_, seed uint64) Rule { return &lfu{sampled: sampled{seed}} }

var (
	lfuLooks         = 5
	lfuFresh  uint8  = 5
	lfuFactor uint64 = 4
	lfuDecay  uint64 = 8
)

func (*lfu) Looks() int { return lfuLooks }

func (*lfu) Worth(c *Candidate, _ uint64) uint32 { return uint32(c.Reference) + 1 }

// Looked takes 1 away with a probability of 1/lfuDecay.
func (l *lfu) Looked(reference uint8, number uint64) uint8 {
	if reference > 0 && Random(^l.seed, number)%lfuDecay == 0 {
		return reference - 1
	}
	return reference
}

// Hit adds 1 with a probability of 1/(1 + factor * (reference - fresh)).
func (l *lfu) Hit(reference uint8, _, draw uint64) uint8 {
	over := uint64(max(reference, lfuFresh) - lfuFresh)
	if reference < 255 && below(Random(l.seed, draw), 1+lfuFactor*over) == 0 {
		return reference + 1
	}
	return reference
}

func (*lfu) Placed(uint64) uint8 { return lfuFresh }
