package policy

// clock takes the next slot whose reference byte is 0. A hit adds 1 up to 3. The hand takes 1 away in
// one of 8 looks, and not in each, as the classic clock does. So it comes round sooner, and samples
// that are read once go before those that are read often.
type clock struct {
	swept
	always
}

func newClock(_, _ uint64) Rule { return &clock{} }

const (
	clockMost  = 3
	clockDecay = 8
	// clockLooks limits the time of a set. If none of so many bytes is 0, the lowest goes.
	clockLooks = 64
)

func (*clock) Looks() int { return clockLooks }

func (*clock) Worth(c Candidate, _ uint64, _ Spread) uint32 { return uint32(c.Reference) }

func (*clock) Looked(reference uint8, number uint64) uint8 {
	if reference > 0 && Random(0, number)%clockDecay == 0 {
		return reference - 1
	}
	return reference
}

func (*clock) Placed(uint64) uint8 { return 0 }
