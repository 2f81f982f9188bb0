package policy

// FirstIndices gives sample i slot i if i is below slots, and no slot to others. So the same known
// samples are cached in each run. It has no Rule: Admit and Next say all of it.
func FirstIndices(slots uint64) Policy { return Policy{kind: KindFirstIndices, slots: slots} }
