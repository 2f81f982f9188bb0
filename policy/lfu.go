package policy

// lfu takes the sample of 8 random ones that has the fewest hits. The reference byte counts hits, the
// more hits the more rarely, as Redis does it: 255 stands for about 33,000 hits. One of 32 looks
// takes a quarter away, so that samples that are no longer read go.
type lfu struct {
	sampled
	always
}

func newLFU(_, seed uint64) Rule { return &lfu{sampled: sampled{seed}} }

const (
	lfuLooks = 8
	lfuDecay = 32
)

func (*lfu) Looks() int { return lfuLooks }

// Worth is not 0 even without hits, so that the search looks at all 8.
func (*lfu) Worth(c Candidate, _ uint64, _ Spread) uint32 { return uint32(c.Reference) + 1 }

func (l *lfu) Looked(reference uint8, number uint64) uint8 {
	if reference > 0 && Random(^l.seed, number)%lfuDecay == 0 {
		return reference - (reference+3)/4
	}
	return reference
}

// lfuCounts says whether a hit adds 1: with a probability of 1/reference, and always to 0. The random number is that
// of the sample, the hand and the byte. So clients share no count of hits, and a byte that nothing competes with soon
// stands still.
func lfuCounts(reference uint8, sample, now uint64) bool {
	return below((sample<<32+now<<8+uint64(reference))*golden, uint64(reference)) == 0
}

func (*lfu) Placed(uint64) uint8 { return 1 }
