package simulate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// named is a read of a timeline that names its sample.
type named struct {
	start int64
	index uint64
}

// recordedEpoch is what a timeline says about one epoch.
type recordedEpoch struct {
	reads   []named
	samples int // that training loops got; 0: unknown
	hits    int
}

// Timeline returns the reads of a recorded timeline, with the mean time of the loads of each sample.
// A recording names the samples that were loaded and not those that were gathered. If an epoch reads each sample once,
// those are the others; the seed says where in the epoch they were read. Other epochs with such hits are left out.
// Further epochs read the same samples, shuffled by the seed.
func Timeline(recorded *timeline.Trace, epochs int, seed uint64) (*Trace, error) {
	t := &Trace{}
	byNumber := map[int32]*recordedEpoch{}
	numbers := dense{}
	loads := recorded.Loads()
	for _, l := range recorded.Loaders {
		for _, track := range l.Tracks {
			for k := range track.Spans {
				s := &track.Spans[k]
				e := byNumber[s.Epoch]
				if e == nil {
					e = &recordedEpoch{}
					byNumber[s.Epoch] = e
				}
				if s.Kind == timeline.Wait && s.Samples > 0 {
					e.samples += int(s.Samples)
					e.hits += int(max(s.Hits, 0))
					t.Batch = max(t.Batch, int(s.Samples))
				}
				if s.Index < 0 || s.Kind != timeline.Load && s.Kind != timeline.Gather {
					continue
				}
				e.reads = append(e.reads, named{s.Start, uint64(s.Index)})
				if int(numbers.number(uint64(s.Index))) == len(t.Seconds) {
					mean := 0.0 // it was never loaded
					for _, seconds := range loads[s.Index] {
						mean += seconds / float64(len(loads[s.Index]))
					}
					t.Seconds = append(t.Seconds, mean)
				}
			}
		}
		if l.Dropped > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("the recording of rank %d lacks %d spans", l.Rank, l.Dropped))
		}
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("%w: no span of this timeline names a sample", ErrTrace)
	}
	t.nameless(byNumber)
	t.Samples, t.SampleBytes = len(t.Seconds), recorded.SampleBytes()
	mean := 0.0 // of the samples that were loaded
	for _, seconds := range t.Seconds {
		mean += seconds / float64(max(len(loads), 1))
	}
	for k := range t.Seconds {
		if t.Seconds[k] == 0 {
			t.Seconds[k] = mean
		}
	}
	t.recordedEpochs(byNumber, numbers, seed)
	if len(t.Ends) == 0 {
		return nil, fmt.Errorf("%w: no epoch of this timeline names all its samples, because hits have no name, and none "+
			"reads each sample once to its end, so that the hits would be known: record an epoch that begins with an empty cache", ErrTrace)
	}
	if epochs > 0 && len(t.Ends) > epochs {
		t.Ends = t.Ends[:epochs]
		t.Accesses = t.Accesses[:t.Ends[epochs-1]]
	}
	t.Once = t.once()
	return t, t.shuffled(epochs, seed)
}

// nameless adds the samples that no epoch loaded: an epoch that reads each sample once hit more than are named.
func (t *Trace) nameless(byNumber map[int32]*recordedEpoch) {
	all := 0
	for _, e := range byNumber {
		if e.samples > all && e.once(e.samples) {
			all = e.samples
		}
	}
	if n := all - len(t.Seconds); n > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d of %d samples were never loaded while this was recorded: their loads count as the others "+
			"do on average", n, all))
		t.Seconds = append(t.Seconds, make([]float64, n)...)
	}
}

// once says whether an epoch read each of so many samples once: no name comes twice, and the others were hits.
func (e *recordedEpoch) once(samples int) bool {
	if len(e.reads) > e.samples || e.samples != samples || e.samples-len(e.reads) > e.hits {
		return false
	}
	seen := map[uint64]bool{}
	for _, r := range e.reads {
		if seen[r.index] {
			return false
		}
		seen[r.index] = true
	}
	return true
}

// recordedEpochs adds the epochs whose samples are known.
func (t *Trace) recordedEpochs(byNumber map[int32]*recordedEpoch, numbers dense, seed uint64) {
	var order []int32
	for number, e := range byNumber {
		if len(e.reads) > 0 || e.samples > 0 {
			order = append(order, number)
		}
	}
	slices.Sort(order)
	for _, number := range order {
		e := byNumber[number]
		hits := e.samples - len(e.reads)
		if hits > 0 && !e.once(t.Samples) {
			t.Notes = append(t.Notes, fmt.Sprintf("epoch %d is left out: the recording names %d of its %d samples, because "+
				"%d were hits, and it did not read each of %d samples once", number, len(e.reads), e.samples, e.hits, t.Samples))
			continue
		}
		slices.SortStableFunc(e.reads, func(a, b named) int { return cmp.Compare(a.start, b.start) })
		var loaded []uint32
		for _, r := range e.reads {
			loaded = append(loaded, numbers[r.index])
		}
		if hits > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("epoch %d: the recording does not say when its %d hits were read; they are mixed "+
				"among its loads at random", number, hits))
			loaded = t.mixed(loaded, policy.Random(seed, uint64(number)))
		}
		t.Accesses = append(t.Accesses, loaded...)
		t.Ends = append(t.Ends, len(t.Accesses))
	}
}

// mixed puts the samples that an epoch did not load at random places among those that it did.
func (t *Trace) mixed(loaded []uint32, seed uint64) []uint32 {
	there := make([]bool, t.Samples)
	for _, sample := range loaded {
		there[sample] = true
	}
	var hits []uint32
	for sample := range there {
		if !there[sample] {
			hits = append(hits, uint32(sample))
		}
	}
	var all []uint32
	for draw := uint64(0); len(loaded)+len(hits) > 0; draw += 2 {
		if at := policy.Random(seed, draw) % uint64(len(loaded)+len(hits)); at < uint64(len(loaded)) {
			all, loaded = append(all, loaded[0]), loaded[1:]
			continue
		}
		k := policy.Random(seed, draw+1) % uint64(len(hits))
		all = append(all, hits[k])
		hits[k] = hits[len(hits)-1]
		hits = hits[:len(hits)-1]
	}
	return all
}

// once says whether each epoch reads each sample once.
func (t *Trace) once() bool {
	begin := 0
	for _, end := range t.Ends {
		if end-begin != t.Samples {
			return false
		}
		seen := make([]bool, t.Samples)
		for _, sample := range t.Accesses[begin:end] {
			if seen[sample] {
				return false
			}
			seen[sample] = true
		}
		begin = end
	}
	return true
}

// shuffled adds epochs in shuffled orders until there are so many.
func (t *Trace) shuffled(epochs int, seed uint64) error {
	if recorded := len(t.Ends); epochs > recorded {
		t.Notes = append(t.Notes, fmt.Sprintf("epochs from %d on are not recorded: they read the same samples in shuffled "+
			"orders", recorded+1))
	}
	part := make([]int, t.Samples)
	for number := len(t.Ends); number < epochs; number++ {
		if len(t.Accesses)+t.Samples > MaxAccesses {
			return fmt.Errorf("%w: more than %d reads; simulate fewer epochs", ErrInvalid, MaxAccesses)
		}
		e, err := order.Order{Samples: uint64(t.Samples), Kind: order.Shuffled, Seed: seed}.Epoch(uint64(number))
		if err != nil {
			return err
		}
		e.Fill(part, 0, 1)
		for _, sample := range part {
			t.Accesses = append(t.Accesses, uint32(sample))
		}
		t.Ends = append(t.Ends, len(t.Accesses))
	}
	return nil
}
