package policy

// FirstCome gives any sample the lowest free slot, while one is free. The samples that are read
// first stay. It has no Rule: Admit and Next say all of it.
func FirstCome(slots uint64) Policy { return Policy{kind: KindFirstCome, slots: slots} }
