package timeline

import (
	"cmp"
	"math"
	"slices"
)

// Epoch says where the time of one loader's epoch went. Times are seconds.
type Epoch struct {
	Loader *Loader
	Number int // -1: unknown

	From, To int64 // the training loop's first and last moment of the epoch, ns
	Batches  int
	Samples  int
	Hits     int
	Misses   int
	Bytes    int64

	Step  float64 // steps of the training loop
	Wait  float64 // likewise
	First float64 // part of Wait: until the epoch has begun and its first batch has come
	// WaitFor divides Wait by the stage that the awaited batch still needed.
	WaitFor Parts
	// Work is the time spent on the epoch's samples, at any moment, summed over threads and
	// processes.
	Work Parts

	Workers int
	Busy    float64 // part of the workers' time between From and To
	// LongestLoad is the time of the slowest sample.
	LongestLoad float64

	Gatherers int     // tracks that gathered
	Collated  float64 // part of Work.Gather: workers made batches of the samples that they loaded
	Startup   float64 // until the first span of its work began
	FirstFor  Parts   // part of WaitFor: of the first batch

	begins int // waits until the first batch came
}

// Parts are times of the stages that a batch goes through, in seconds.
type Parts struct {
	Load         float64 // misses
	Augment      float64 // the random part of samples, hits or not
	Delay        float64 // waits of samples for a processor, which Load, Augment and Gather leave out
	Fetch        float64 // samples that were requested from a server
	Gather       float64 // copies of hits, and assembling of batches
	BatchAugment float64 // the random part of whole batches, by the training loop
	Transfer     float64 // to pinned memory or a device
	Other        float64 // not recorded
}

func (p Parts) plus(q Parts, sign float64) Parts {
	return Parts{p.Load + sign*q.Load, p.Augment + sign*q.Augment, p.Delay + sign*q.Delay, p.Fetch + sign*q.Fetch,
		p.Gather + sign*q.Gather, p.BatchAugment + sign*q.BatchAugment, p.Transfer + sign*q.Transfer,
		p.Other + sign*q.Other}
}

// Seconds of the training loop.
func (e *Epoch) Seconds() float64 { return e.Step + e.Wait }

// Waiting is the part of its time in which the training loop waited; NaN: it has no time.
func (e *Epoch) Waiting() float64 { return e.Wait / e.Seconds() }

// HitRate is the part of hits; NaN: unknown.
func (e *Epoch) HitRate() float64 { return float64(e.Hits) / float64(e.Hits+e.Misses) }

// Setting returns the number of workers as it was set, or the number that was recorded.
func (e *Epoch) Setting() int {
	if n, ok := e.Loader.setting("num_workers"); ok {
		return n
	}
	return e.Workers
}

// Rate is samples a second; NaN: unknown.
func (e *Epoch) Rate() float64 {
	if e.Samples == 0 {
		return math.NaN()
	}
	return float64(e.Samples) / e.Seconds()
}

// Stages, and the groups of stages that a training loop waits for one after the other. All work of
// a worker on samples is one group, because several workers do different parts of it at once.
const (
	loadStage = iota
	augmentStage
	delayStage
	fetchStage
	gatherStage
	batchAugmentStage
	transferStage
	stages
)

// stage returns the stage that a kind of span counts for; false: none.
func (k Kind) stage() (int, bool) {
	switch k {
	case Load:
		return loadStage, true
	case Augment:
		return augmentStage, true
	case Delay:
		return delayStage, true
	case Fetch:
		return fetchStage, true
	case Gather, Collate:
		return gatherStage, true
	case BatchAugment:
		return batchAugmentStage, true
	case Transfer:
		return transferStage, true
	}
	return 0, false
}

const sampleGroup = loadStage

func groupOf(stage int, byWorker bool) int {
	if byWorker || stage == augmentStage || stage == delayStage {
		return sampleGroup
	}
	return stage
}

func parts(seconds [stages]float64, other float64) Parts {
	return Parts{
		Load: seconds[loadStage], Augment: seconds[augmentStage], Delay: seconds[delayStage],
		Fetch: seconds[fetchStage], Gather: seconds[gatherStage], BatchAugment: seconds[batchAugmentStage],
		Transfer: seconds[transferStage], Other: other,
	}
}

// Epochs returns the epochs of all loaders, by loader and number. If spans were dropped, it cuts
// epochs at the first dropped one. It returns none without a training loop.
func (t *Trace) Epochs() (epochs []*Epoch) {
	for _, l := range t.Loaders {
		epochs = append(epochs, l.epochs()...)
	}
	return epochs
}

func (l *Loader) epochs() (epochs []*Epoch) {
	loop := l.Loop()
	if loop == nil {
		return nil
	}
	end := int64(math.MaxInt64)
	if l.DroppedFrom != nil {
		end = nanoseconds(*l.DroppedFrom)
	}
	numbers := map[int32]*Epoch{}
	waits := map[int32][]*Span{}
	for k := range loop.Spans {
		s := &loop.Spans[k]
		if s.Kind != Step && s.Kind != Wait || s.End > end {
			continue
		}
		e := numbers[s.Epoch]
		if e == nil {
			e = &Epoch{Loader: l, Number: int(s.Epoch), From: s.Start}
			numbers[s.Epoch], epochs = e, append(epochs, e)
		}
		e.To = max(e.To, s.End)
		if s.Kind == Step {
			e.Step += seconds(s.Length())
			continue
		}
		e.Wait += seconds(s.Length())
		waits[s.Epoch] = append(waits[s.Epoch], s)
		if s.Samples > 0 { // this is not the wait for the end of an epoch
			if e.Batches == 0 {
				e.First, e.begins = e.Wait, len(waits[s.Epoch])
			}
			e.Batches++
			e.Samples += int(s.Samples)
			e.Hits += int(max(s.Hits, 0))
			e.Misses += int(max(s.Misses, 0))
			e.Bytes += max(s.Bytes, 0)
		}
	}
	slices.SortStableFunc(epochs, func(a, b *Epoch) int { return cmp.Compare(a.Number, b.Number) })
	w := l.work(end)
	for _, e := range epochs {
		w.into(e)
		of := waits[int32(e.Number)]
		first := e.begins
		e.FirstFor = w.attribute(of[:first])
		e.WaitFor = e.FirstFor.plus(w.attribute(of[first:]), 1)
	}
	return epochs
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// batch is a batch of an epoch.
type batch struct{ epoch, number int32 }

// work is the work of a loader outside of the training loop.
type work struct {
	loader *Loader
	spans  map[int32]*[stages]float64 // by epoch, in seconds
	longest,
	firstStart map[int32]int64
	collated map[int32]float64
	gathers  map[int32]map[int]bool
	own      map[batch][]span   // own spans of each batch
	any      [stages][]interval // when any batch was in this group, merged
	workers  [][]interval       // when each worker was busy, merged
}

type interval struct{ start, end int64 }

type span struct {
	interval
	stage, group int
}

func (l *Loader) work(end int64) *work {
	w := &work{loader: l, spans: map[int32]*[stages]float64{}, longest: map[int32]int64{},
		firstStart: map[int32]int64{}, collated: map[int32]float64{}, gathers: map[int32]map[int]bool{},
		own: map[batch][]span{}}
	for _, track := range l.Tracks {
		if track.Number >= firstOther {
			continue
		}
		_, isWorker := track.Worker()
		var busy []interval
		top := [stages]int64{} // end of the counted spans: a span within another is not counted twice
		for k := range track.Spans {
			s := &track.Spans[k]
			stage, ok := s.Kind.stage()
			if !ok || s.Start >= end {
				continue
			}
			if isWorker {
				busy = append(busy, interval{s.Start, s.End})
			}
			if w.spans[s.Epoch] == nil {
				w.spans[s.Epoch], w.gathers[s.Epoch], w.firstStart[s.Epoch] = &[stages]float64{}, map[int]bool{},
					s.Start
			}
			w.spans[s.Epoch][stage] += seconds(max(s.End-max(s.Start, top[stage]), 0))
			top[stage] = max(top[stage], s.End)
			w.firstStart[s.Epoch] = min(w.firstStart[s.Epoch], s.Start)
			if s.Kind == Load {
				w.longest[s.Epoch] = max(w.longest[s.Epoch], s.Length())
			}
			if s.Kind == Collate && isWorker {
				w.collated[s.Epoch] += seconds(s.Length())
			}
			if stage == gatherStage {
				w.gathers[s.Epoch][track.Number] = true
			}
			group := groupOf(stage, isWorker)
			w.any[group] = append(w.any[group], interval{s.Start, s.End})
			if s.Batch >= 0 {
				b := batch{s.Epoch, s.Batch}
				w.own[b] = append(w.own[b], span{interval{s.Start, s.End}, stage, group})
			}
		}
		if isWorker {
			w.workers = append(w.workers, merged(busy))
		}
	}
	for group := range w.any {
		w.any[group] = merged(w.any[group])
	}
	return w
}

// into adds the work to an epoch.
func (w *work) into(e *Epoch) {
	number := int32(e.Number)
	if done := w.spans[number]; done != nil {
		e.Work = parts(*done, 0)
		e.Startup = max(seconds(w.firstStart[number]-e.From), 0)
	}
	e.LongestLoad, e.Gatherers, e.Collated = seconds(w.longest[number]), len(w.gathers[number]), w.collated[number]
	e.Workers = len(w.workers)
	if whole := seconds(e.To-e.From) * float64(e.Workers); whole > 0 {
		for _, busy := range w.workers {
			e.Busy += seconds(overlap(busy, e.From, e.To)) / whole
		}
	}
}

// attribute divides waits. Each moment counts for the first group of stages in which the awaited
// batch was. If it was in none, the moment counts for the first group in which any other batch was,
// which went before it; else for Other. Within a group, the time is divided like the work in that
// time.
func (w *work) attribute(waits []*Span) Parts {
	var total [stages]float64
	other := 0.0
	for _, wait := range waits {
		left := []interval{{wait.Start, wait.End}}
		take := func(of []interval, shares [stages]float64, group int) {
			var rest []interval
			took := 0.0
			for _, gap := range left {
				at := gap.start
				for _, o := range within(of, gap.start, gap.end) {
					if o.start > at {
						rest = append(rest, interval{at, o.start})
					}
					took += seconds(o.end - o.start)
					at = o.end
				}
				if at < gap.end {
					rest = append(rest, interval{at, gap.end})
				}
			}
			left = rest
			whole := 0.0
			for _, share := range shares {
				whole += share
			}
			if whole == 0 {
				shares[group], whole = 1, 1
			}
			for stage, share := range shares {
				total[stage] += took * share / whole
			}
		}
		if own := w.own[batch{wait.Epoch, wait.Batch}]; wait.Batch >= 0 {
			for group := range stages {
				var of []interval
				var shares [stages]float64
				for _, s := range own {
					if s.group == group {
						of = append(of, s.interval)
						shares[s.stage] += seconds(max(min(s.end, wait.End)-max(s.start, wait.Start), 0))
					}
				}
				take(merged(of), shares, group)
			}
		}
		for group := range stages {
			var shares [stages]float64
			if done := w.spans[wait.Epoch]; group == sampleGroup && done != nil {
				copy(shares[loadStage:fetchStage], done[loadStage:])
			}
			take(w.any[group], shares, group)
		}
		for _, gap := range left {
			other += seconds(gap.end - gap.start)
		}
	}
	return parts(total, other)
}

// merged returns the union of intervals, sorted by start. Neighbours that touch become one.
func merged(in []interval) (out []interval) {
	slices.SortFunc(in, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	for _, i := range in {
		if i.end <= i.start {
			continue
		}
		if n := len(out); n > 0 && i.start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, i.end)
		} else {
			out = append(out, i)
		}
	}
	return out
}

// within returns the parts of merged intervals between from and to.
func within(of []interval, from, to int64) (parts []interval) {
	k, _ := slices.BinarySearchFunc(of, from, func(i interval, from int64) int { return cmp.Compare(i.end, from+1) })
	for ; k < len(of) && of[k].start < to; k++ {
		parts = append(parts, interval{max(of[k].start, from), min(of[k].end, to)})
	}
	return parts
}

func overlap(of []interval, from, to int64) (sum int64) {
	for _, i := range within(of, from, to) {
		sum += i.end - i.start
	}
	return sum
}

// Use is how busy one track of a loader was between two moments.
type Use struct {
	Loader *Loader
	Track  *Track
	Spans  int
	Busy   float64 // seconds
	Share  float64 // share of the time
}

// Typical returns the epoch to give advice about; nil: there is none. It takes the last epoch of
// each loader that is not a mere beginning, and of these the one that waits most.
func Typical(epochs []*Epoch) (typical *Epoch) {
	last := map[*Loader]*Epoch{}
	for _, e := range epochs {
		if before := last[e.Loader]; before == nil || 2*e.Batches >= before.Batches {
			last[e.Loader] = e
		}
	}
	for _, e := range epochs {
		if last[e.Loader] == e && e.Seconds() > 0 && (typical == nil || e.Waiting() > typical.Waiting()) {
			typical = e
		}
	}
	return typical
}

// Uses returns how busy tracks were between two moments, by loader and track. On the training
// loop's track only steps count.
func (t *Trace) Uses(from, to int64) (uses []Use) {
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			var busy []interval
			u := Use{Loader: l, Track: track}
			for k := range track.Spans {
				s := &track.Spans[k]
				if s.End <= from && s.Start < from || s.Start >= to {
					continue
				}
				u.Spans++
				if track.Number != loopTrack || s.Kind == Step {
					busy = append(busy, interval{s.Start, s.End})
				}
			}
			u.Busy = seconds(overlap(merged(busy), from, to))
			u.Share = u.Busy / seconds(to-from)
			uses = append(uses, u)
		}
	}
	return uses
}

// Loads returns the times of the loads of each sample by its index, in seconds.
func (t *Trace) Loads() map[int64][]float64 {
	loads := map[int64][]float64{}
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			for k := range track.Spans {
				if s := &track.Spans[k]; s.Kind == Load && s.Index >= 0 {
					loads[s.Index] = append(loads[s.Index], seconds(s.Length()))
				}
			}
		}
	}
	return loads
}

// SourceShare returns the part of loads in which they waited for their source; NaN: it was not recorded.
func (t *Trace) SourceShare() float64 {
	waited, measured := int64(0), int64(0)
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			var load *Span // the load before
			for k := range track.Spans {
				switch s := &track.Spans[k]; {
				case s.Kind == Load:
					load = s
				case s.Kind == Source && load != nil && s.Start == load.Start:
					waited += s.Length()
					measured += load.Length()
				}
			}
		}
	}
	return float64(waited) / float64(measured)
}

// SampleBytes returns the mean size of samples as a cache stores them; 0: unknown. The size of a batch says it if
// nothing changes samples on their way into the batch.
func (t *Trace) SampleBytes() uint64 {
	var bytes, samples int64
	for _, l := range t.Loaders {
		if l.SampleBytes > 0 {
			return l.SampleBytes
		}
		if l.Settings["augment"] != nil || l.Settings["batch_augment"] != nil || l.Settings["transform"] != nil {
			return 0
		}
		for _, track := range l.Tracks {
			for k := range track.Spans {
				if s := &track.Spans[k]; s.Kind == Wait && s.Samples > 0 && s.Bytes > 0 {
					bytes, samples = bytes+s.Bytes, samples+int64(s.Samples)
				}
			}
		}
	}
	return uint64(bytes / max(samples, 1))
}

// Slow is a sample that took long to load.
type Slow struct {
	Loader *Loader
	Track  *Track
	Span   Span
}

// Slowest returns the n longest loads, the longest first.
func (t *Trace) Slowest(n int) (slow []Slow) {
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			for _, s := range track.Spans {
				if s.Kind != Load {
					continue
				}
				if len(slow) == n && (n == 0 || s.Length() <= slow[n-1].Span.Length()) {
					continue
				}
				at := slices.IndexFunc(slow, func(a Slow) bool { return a.Span.Length() < s.Length() })
				if at < 0 {
					at = len(slow)
				}
				slow = slices.Insert(slow, at, Slow{l, track, s})
				slow = slow[:min(len(slow), n)]
			}
		}
	}
	return slow
}
