package simulate

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/order"
)

// ReadFile reads a trace, compressed by gzip or not: a timeline of a loader, or one index a line.
//
// A timeline has epochs of its own, and further ones are shuffled by the seed. Other traces are divided into equal parts.
// epochs of 0: those of the timeline, or 1.
func ReadFile(path string, epochs int, seed uint64) (*Trace, error) {
	return timeline.ReadWith(path, ErrTrace, func(r io.Reader) (*Trace, error) { return Read(r, epochs, seed) })
}

// Read is ReadFile of what a reader gives.
func Read(r io.Reader, epochs int, seed uint64) (*Trace, error) {
	in, err := timeline.Gunzip(bufio.NewReaderSize(r, 1<<20), ErrTrace)
	if err != nil {
		return nil, err
	}
	begin, err := in.Peek(4096)
	if len(begin) == 0 {
		if err != io.EOF {
			return nil, fmt.Errorf("%w: %v", ErrTrace, err)
		}
		return nil, fmt.Errorf("%w: it is empty", ErrTrace)
	}
	if first := bytes.TrimLeft(begin, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		t, err := timeline.Read(in)
		if err != nil {
			return nil, err
		}
		return Timeline(t, epochs, seed)
	}
	return lines(in, max(epochs, 1))
}

// dense numbers samples in the order in which they come.
type dense map[uint64]uint32

func (d dense) number(sample uint64) uint32 {
	n, known := d[sample]
	if !known {
		n = uint32(len(d))
		d[sample] = n
	}
	return n
}

// lines reads one index a line, in epochs of the same length. Empty lines and those that begin with # do not count.
func lines(in io.Reader, epochs int) (*Trace, error) {
	numbers, reads := dense{}, []uint32(nil)
	s := bufio.NewScanner(in)
	for number := 1; s.Scan(); number++ {
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		index, err := strconv.ParseUint(string(text), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d is %.40q; a trace has one index a line, or is a timeline of a loader "+
				"(trace=\"run.json\")", ErrTrace, number, text)
		}
		if len(reads) == MaxAccesses {
			return nil, fmt.Errorf("%w: more than %d reads; simulate a part", ErrTrace, MaxAccesses)
		}
		reads = append(reads, numbers.number(index))
	}
	n := len(reads)
	switch err := s.Err(); {
	case err != nil:
		return nil, fmt.Errorf("%w: %v", ErrTrace, err)
	case n == 0:
		return nil, fmt.Errorf("%w: it has no index", ErrTrace)
	case epochs > n:
		return nil, fmt.Errorf("%w: %d reads cannot be divided into %d epochs", ErrInvalid, n, epochs)
	}
	t := &Trace{Samples: len(numbers)}
	for k := range epochs {
		t.add(reads[n*k/epochs : n*(k+1)/epochs])
	}
	return t, nil
}

// add adds an epoch of one job.
func (t *Trace) add(reads []uint32) { t.Epochs = append(t.Epochs, [][]uint32{reads}) }

// recordedEpoch is what a timeline says about one epoch.
type recordedEpoch struct {
	loads   []*timeline.Span // and gathers, which name their sample too
	samples int              // samples that training loops got; 0: unknown
}

// Timeline returns the reads of a recorded timeline, with the mean time of the loads of each sample.
// A recording names the samples that were loaded, and not those that were hits. An epoch that names all its samples is
// read as recorded. If these epochs read each sample once, so do the others, and further ones: shuffled by the seed.
func Timeline(recorded *timeline.Trace, epochs int, seed uint64) (*Trace, error) {
	t := &Trace{SampleBytes: recorded.SampleBytes()}
	byNumber := map[int32]*recordedEpoch{}
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
					t.Batch = max(t.Batch, int(s.Samples))
				}
				if s.Index >= 0 && (s.Kind == timeline.Load || s.Kind == timeline.Gather) {
					e.loads = append(e.loads, s)
				}
			}
		}
		if l.Dropped > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("the recording of rank %d lacks %d spans", l.Rank, l.Dropped))
		}
	}
	numbers, nameless := dense{}, 0
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		switch e := byNumber[number]; {
		case e.samples > len(e.loads):
			nameless++
		case len(e.loads) > 0:
			slices.SortStableFunc(e.loads, func(a, b *timeline.Span) int { return cmp.Compare(a.Start, b.Start) })
			var reads []uint32
			for _, s := range e.loads {
				reads = append(reads, numbers.number(uint64(s.Index)))
			}
			t.add(reads)
		}
	}
	if t.Samples = len(numbers); t.Samples == 0 {
		return nil, fmt.Errorf("%w: no epoch of this timeline names all its samples, because hits have no name: record an "+
			"epoch that begins with an empty cache", ErrTrace)
	}
	t.costs(recorded.Loads(), numbers)
	whole := len(t.Epochs)
	if epochs == 0 && t.once() {
		epochs, nameless = whole+nameless, 0
	}
	if nameless > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d epochs are left out: the recording does not name their hits", nameless))
	}
	return t, t.shuffled(cmp.Or(epochs, whole), seed)
}

// costs sets the mean time of the loads of each sample.
func (t *Trace) costs(loads map[int64][]float64, numbers dense) {
	t.Seconds = make([]float64, t.Samples)
	mean, known := 0.0, 0.0
	for index, number := range numbers {
		of := loads[int64(index)]
		for _, seconds := range of {
			t.Seconds[number] += seconds / float64(len(of))
		}
		if len(of) > 0 {
			mean, known = mean+t.Seconds[number], known+1
		}
	}
	for k, seconds := range t.Seconds {
		if seconds == 0 { // it was gathered, and counts as the others do on average
			t.Seconds[k] = mean / max(known, 1)
		}
	}
}

// once says whether each epoch reads each sample once.
func (t *Trace) once() bool {
	return !slices.ContainsFunc(t.Epochs, func(readers [][]uint32) bool {
		distinct := slices.Compact(slices.Sorted(slices.Values(readers[0])))
		return len(distinct) != t.Samples || len(readers[0]) != t.Samples
	})
}

// shuffled makes the trace so many epochs long. Those that it lacks read its samples in shuffled orders.
func (t *Trace) shuffled(epochs int, seed uint64) error {
	recorded := len(t.Epochs)
	if epochs > recorded {
		t.Notes = append(t.Notes, fmt.Sprintf("the recording names all samples of %d epochs: those from %d on read the same "+
			"samples in shuffled orders", recorded, recorded+1))
	}
	if float64(epochs)*float64(t.Samples) > MaxAccesses {
		return fmt.Errorf("%w: more than %d reads; simulate fewer epochs", ErrInvalid, MaxAccesses)
	}
	t.Epochs = t.Epochs[:min(epochs, recorded)]
	for number := recorded; number < epochs; number++ {
		e, err := order.Order{Samples: uint64(t.Samples), Kind: order.Shuffled, Seed: seed}.Epoch(uint64(number))
		if err != nil {
			return err
		}
		t.add(part(e, t.Samples, 0, 1))
	}
	return nil
}
