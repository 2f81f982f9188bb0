package simulate

import "github.com/stocached/stocached/policy"

// future knows when each sample of a trace is read next.
type future struct {
	at    int
	after []uint32 // position of the next read of the sample at each position
	of    []uint32 // position of the next read of each sample
}

const unread = 1<<32 - 1

// newFuture knows a trace and what is planned after it.
func newFuture(t *Trace, planned []uint32) *future {
	f := &future{after: make([]uint32, len(t.Accesses)), of: make([]uint32, t.Samples)}
	for k := range f.of {
		f.of[k] = unread
	}
	for k := len(planned) - 1; k >= 0; k-- {
		f.of[planned[k]] = uint32(len(t.Accesses) + k)
	}
	for k := len(t.Accesses) - 1; k >= 0; k-- {
		f.after[k], f.of[t.Accesses[k]] = f.of[t.Accesses[k]], uint32(k)
	}
	return f
}

// pass moves on after the read of a sample, and returns the position of its next one.
func (f *future) pass(sample uint32) uint32 {
	f.of[sample] = f.after[f.at]
	f.at++
	return f.of[sample]
}

// next is in how many reads a sample is read, as policy.Candidate has it.
func (f *future) next(sample uint32) uint64 {
	if f.of[sample] == unread {
		return policy.Unread
	}
	return uint64(f.of[sample]) - uint64(f.at) + 1
}
