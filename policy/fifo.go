package policy

// fifo takes the slot that was filled first: a hand over the slots.
type fifo struct {
	swept
	unreferenced
	always
}

func newFIFO(_, _ uint64) Rule { return &fifo{} }

func (*fifo) Looks() int                                   { return looks }
func (*fifo) Worth(_ Candidate, _ uint64, _ Spread) uint32 { return 0 }
