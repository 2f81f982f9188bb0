package simulate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/order"
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
// A recording names the samples that were loaded and not those that were gathered, so only epochs
// without such hits count. Further epochs read the same samples, shuffled by the seed.
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
	t.Samples, t.SampleBytes = len(numbers), recorded.SampleBytes()
	mean := 0.0 // of the samples that were loaded
	for _, seconds := range t.Seconds {
		mean += seconds / float64(max(len(loads), 1))
	}
	for k := range t.Seconds {
		if t.Seconds[k] == 0 {
			t.Seconds[k] = mean
		}
	}
	t.recordedEpochs(byNumber, numbers)
	if len(t.Ends) == 0 {
		return nil, fmt.Errorf("%w: no epoch of this timeline names all its samples, because hits have no name: record "+
			"an epoch that begins with an empty cache", ErrTrace)
	}
	if epochs > 0 && len(t.Ends) > epochs {
		t.Ends = t.Ends[:epochs]
		t.Accesses = t.Accesses[:t.Ends[epochs-1]]
	}
	t.Once = t.once()
	return t, t.shuffled(epochs, seed)
}

// recordedEpochs adds the epochs that name all their samples.
func (t *Trace) recordedEpochs(byNumber map[int32]*recordedEpoch, numbers dense) {
	var order []int32
	for number, e := range byNumber {
		if len(e.reads) > 0 || e.samples > 0 {
			order = append(order, number)
		}
	}
	slices.Sort(order)
	for _, number := range order {
		e := byNumber[number]
		if len(e.reads) < e.samples {
			t.Notes = append(t.Notes, fmt.Sprintf("epoch %d is left out: the recording names %d of its %d samples, because "+
				"%d were hits", number, len(e.reads), e.samples, e.hits))
			continue
		}
		slices.SortStableFunc(e.reads, func(a, b named) int { return cmp.Compare(a.start, b.start) })
		for _, r := range e.reads {
			t.Accesses = append(t.Accesses, numbers[r.index])
		}
		t.Ends = append(t.Ends, len(t.Accesses))
	}
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
