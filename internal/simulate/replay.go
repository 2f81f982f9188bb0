package simulate

import "github.com/stocached/stocached/policy"

// Replay is a fixed-size cache of the simulator that is read sample by sample. Tests compare the
// decisions of a real cache in one process with it.
type Replay struct{ c *policyCache }

// Decision is what a read did. Numbers are -1 for none.
type Decision struct {
	Hit    bool
	Slot   int // of the sample after the read
	Victim int // sample that went for it
}

// NewReplay returns an empty cache.
func NewReplay(kind policy.Kind, samples int, slots, seed uint64) *Replay {
	return &Replay{newPolicyCache(&Trace{Samples: samples}, &Options{Seed: seed}, kind, slots)}
}

// Read reads a sample, and loads it in this time, above 0, if it is not there.
func (r *Replay) Read(sample int, nanoseconds uint64) Decision {
	r.c.given, r.c.victim = nanoseconds, -1
	hit := r.c.access(uint32(sample), 0)
	return Decision{hit, int(r.c.slotOf[sample]), r.c.victim}
}

// Plan says in how many reads a sample is read next, for the policy planned, as policy.Candidate has it.
func (r *Replay) Plan(next func(sample int) uint64) {
	if !r.c.kind.NeedsPlans() {
		return
	}
	r.c.next = func(sample uint32) uint64 { return next(int(sample)) }
}

// Cost returns the cost of a sample.
func (r *Replay) Cost(sample int) policy.Cost { return r.c.cost(uint32(sample)) }

// Reference returns the reference byte of a slot that holds a sample.
func (r *Replay) Reference(slot int) uint8 { return r.c.entries[slot].reference }

// Shared returns the words that the clients of a cache share.
func (r *Replay) Shared() (hand uint64, spread policy.Spread) { return r.c.hand, r.c.spread }
