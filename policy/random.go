package policy

// random takes the sample of any slot.
type random struct {
	sampled
	unreferenced
	always
}

func newRandom(_, seed uint64) Rule { return &random{sampled: sampled{seed}} }

func (*random) Looks() int                                   { return looks }
func (*random) Worth(_ Candidate, _ uint64, _ Spread) uint32 { return 0 }
