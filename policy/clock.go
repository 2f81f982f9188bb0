package policy

// clock takes the next slot that had no hit since the hand passed it as often as it had hits before.
type clock struct {
	swept
	always
}

func newClock(_, _ uint64) Rule { return &clock{} }

// mostChances is the greatest reference byte of clock.
var mostChances uint8 = 3

func (*clock) Looks() int                          { return 64 }
func (*clock) Worth(c *Candidate, _ uint64) uint32 { return uint32(c.Reference) }

func (*clock) Looked(reference uint8, _ uint64) uint8 { return max(reference, 1) - 1 }

func (*clock) Hit(reference uint8, _, _ uint64) uint8 {
	return max(reference, min(reference+1, mostChances))
}

func (*clock) Placed(uint64) uint8 { return 0 }
