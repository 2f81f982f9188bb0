package simulate

import "github.com/stocached/stocached/policy"

// batches reads a cache as loaders do. A job looks up the samples of a batch together, and some batches ahead of the
// misses that it stores. So a hit is one that the cache had when its batch was looked up, or that came before the
// job loaded the sample.
type batches struct {
	cache
	plans  *future // of the jobs; nil: the policy needs none
	epochs []Epoch
	ahead  int
	missed [][][]miss // of each job, of the batches whose misses are not stored yet
}

// miss is a read that missed.
type miss struct {
	sample uint32
	epoch  int
}

// inBatches returns the trace in the order in which its jobs look samples up: a batch of each job in turn.
func (t *Trace) inBatches(size int) *Trace {
	jobs := max(t.Jobs, 1)
	if jobs == 1 {
		return t
	}
	of := *t
	of.Accesses, of.Planned = make([]uint32, 0, len(t.Accesses)), make([]uint32, 0, len(t.Planned))
	begin := 0
	for _, end := range t.Ends {
		of.Accesses = appendInBatches(of.Accesses, t.Accesses[begin:end], jobs, size)
		begin = end
	}
	of.Planned = appendInBatches(of.Planned, t.Planned, jobs, size)
	return &of
}

// appendInBatches appends an epoch, in which the jobs read in turn: first a batch of each job, then the next ones.
func appendInBatches(to, epoch []uint32, jobs, size int) []uint32 {
	each := len(epoch) / jobs
	for first := 0; first < each; first += size {
		for job := range jobs {
			for k := first; k < min(first+size, each); k++ {
				to = append(to, epoch[k*jobs+job])
			}
		}
	}
	return to
}

// runBatches reads a trace of inBatches.
func (t *Trace) runBatches(kind policy.Kind, room uint64, o *Options, progress func(reads int) error) ([]Epoch, error) {
	jobs, plans := max(t.Jobs, 1), t.plans(kind)
	c := t.cache(kind, room, o, plans)
	b := &batches{cache: c, plans: plans, epochs: make([]Epoch, len(t.Ends)), ahead: o.Ahead, missed: make([][][]miss, jobs)}
	first := o.First // when an epoch begins, its first batches are looked up at once
	if first == 0 {
		first = o.Ahead
	}
	at, told, before := 0, -progressEvery, uint64(0)
	for number, end := range t.Ends {
		e, each := &b.epochs[number], (end-at)/jobs
		e.Reads = uint64(end - at)
		for begin, k := 0, 0; begin < each; begin, k = begin+o.Batch, k+1 {
			for job := range jobs {
				if progress != nil && at-told >= progressEvery {
					told = at
					if err := progress(at); err != nil {
						return nil, err
					}
				}
				if k == 0 || k >= first {
					b.store(t, job, o.Ahead)
				}
				n := min(o.Batch, each-begin)
				b.lookUp(t, job, number, t.Accesses[at:at+n])
				at += n
			}
		}
		if number == len(t.Ends)-1 {
			for job := range jobs {
				b.store(t, job, 0)
			}
		}
		e.Replaced = c.replaced() - before
		before = c.replaced()
	}
	return b.epochs, nil
}

// lookUp looks up a batch of a job.
func (b *batches) lookUp(t *Trace, job, epoch int, samples []uint32) {
	e := &b.epochs[epoch]
	var missed []miss
	for _, sample := range samples {
		seconds := t.seconds(sample)
		e.Seconds += seconds
		if b.plans != nil {
			b.plans.pass(sample)
		}
		if b.has(sample) {
			b.access(sample, epoch)
			e.Hits++
			e.Saved += seconds
		} else {
			missed = append(missed, miss{sample, epoch})
		}
	}
	b.missed[job] = append(b.missed[job], missed)
}

// store stores the misses of a job but those of its last batches.
func (b *batches) store(t *Trace, job, but int) {
	for ; len(b.missed[job]) > but; b.missed[job] = b.missed[job][1:] {
		for _, m := range b.missed[job][0] {
			if b.access(m.sample, m.epoch) { // it has come since
				b.epochs[m.epoch].Hits++
				b.epochs[m.epoch].Saved += t.seconds(m.sample)
			}
		}
	}
}
