// Package timeline reads the traces of loaders (docs/spec/trace.md), merges several of them, says
// where the time went, and draws them. Package advise says what would help.
package timeline

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Trace is the loaders of one or several files on one time line. Times are nanoseconds from its
// begin.
type Trace struct {
	Loaders []*Loader
	names   []string // names of spans of kind Other
}

// Loader is the recorded loader of one rank.
type Loader struct {
	PID         int            `json:"pid"`
	Rank        int            `json:"rank"`
	WorldSize   int            `json:"world_size"`
	Settings    map[string]any `json:"settings"`
	CPUs        int            `json:"cpus"`
	Events      int            `json:"events"`
	Dropped     int            `json:"dropped"`
	DroppedFrom *float64       `json:"dropped_from"` // us
	Clock       Clock          `json:"clock"`
	// Samples of the dataset, those of a whole epoch of this rank, and bytes of one as a cache stores it; 0: unknown.
	Samples      int      `json:"samples,omitempty"`
	EpochSamples int      `json:"epoch_samples,omitempty"`
	SampleBytes  uint64   `json:"sample_bytes,omitempty"`
	Tracks       []*Track `json:"-"` // by number
}

// Clock has the times at which ts was 0.
type Clock struct {
	Boot        string `json:"boot"`
	MonotonicNS int64  `json:"monotonic_ns"`
	UnixNS      int64  `json:"unix_ns"`
}

// Track has the spans of one thread or process, sorted by start.
type Track struct {
	Number int
	Name   string
	Spans  []Span
	reach  []int64 // the latest end of each span and those before it; as long as Spans, or not computed yet
}

// Span is one recorded interval. Unknown numbers are -1.
type Span struct {
	Start, End   int64
	Index, Bytes int64
	Epoch, Batch int32
	Samples      int32
	Hits, Misses int32
	Kind         Kind
	name         uint16 // with kind Other: index into Trace.names
}

// Length is in nanoseconds.
func (s *Span) Length() int64 { return s.End - s.Start }

// Name returns the recorder's name of a span.
func (t *Trace) Name(s *Span) string {
	if s.Kind == Other {
		return t.names[s.name]
	}
	return s.Kind.String()
}

// Kind is the kind of a span.
type Kind uint8

const (
	Step Kind = iota
	Wait
	Load
	Augment
	Gather
	Collate
	Transfer
	Fetch
	BatchAugment
	Source // within a load
	Delay  // a sample waited for a processor
	Other
	kinds
)

var kindNames = [kinds]string{"step", "wait", "load", "augment", "gather", "collate", "transfer", "fetch",
	"batch_augment", "source", "delay", "other"}

func (k Kind) String() string { return kindNames[k] }

func kindOf(name string) Kind {
	if k := slices.Index(kindNames[:Other], name); k >= 0 {
		return Kind(k)
	}
	return Other
}

// Numbers of tracks.
const (
	loopTrack     = 1
	transferTrack = 2
	gatherTrack   = 3
	serverTrack   = 8
	firstWorker   = 10
	firstOther    = 5000
	tidsOfLoader  = 10000
)

// touching returns the spans that overlap or touch the time between two moments.
func (t *Track) touching(from, to int64) (spans []Span) {
	if len(t.reach) != len(t.Spans) {
		t.reach = make([]int64, len(t.Spans))
		for k := range t.Spans {
			t.reach[k] = max(t.Spans[k].End, t.reach[max(k-1, 0)])
		}
	}
	first, _ := slices.BinarySearch(t.reach, from)
	for _, s := range t.Spans[first:] {
		if s.Start > to {
			break
		}
		if s.End >= from {
			spans = append(spans, s)
		}
	}
	return spans
}

// Worker returns the worker's number of a track; false for other tracks.
func (t *Track) Worker() (number int, ok bool) {
	return t.Number - firstWorker, t.Number >= firstWorker && t.Number < firstOther
}

// Loop returns the track of the training loop; nil if there is none.
func (l *Loader) Loop() *Track {
	for _, t := range l.Tracks {
		if t.Number == loopTrack {
			return t
		}
	}
	return nil
}

// Workers returns the tracks of workers.
func (l *Loader) Workers() (tracks []*Track) {
	for _, t := range l.Tracks {
		if _, ok := t.Worker(); ok {
			tracks = append(tracks, t)
		}
	}
	return tracks
}

// Name is the name for people.
func (l *Loader) Name() string { return "rank " + strconv.Itoa(l.Rank) }

// setting returns a setting that is a whole number.
func (l *Loader) setting(name string) (int, bool) {
	v, ok := l.Settings[name].(float64)
	return int(v), ok && v == float64(int(v))
}

// Spans returns the number of spans.
func (t *Trace) Spans() (n int) {
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			n += len(track.Spans)
		}
	}
	return n
}

// Bounds returns the first start and the last end; 0, 0 of an empty trace.
func (t *Trace) Bounds() (from, to int64) {
	first := true
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			for k := range track.Spans {
				s := &track.Spans[k]
				if first || s.Start < from {
					from = s.Start
				}
				if first || s.End > to {
					to = s.End
				}
				first = false
			}
		}
	}
	return from, to
}

// Epoch returns when the training loops of all loaders began and ended an epoch; false: there is no
// epoch of that number.
func (t *Trace) Epoch(number int) (from, to int64, ok bool) {
	for _, l := range t.Loaders {
		if loop := l.Loop(); loop != nil {
			for k := range loop.Spans {
				s := &loop.Spans[k]
				if s.Epoch != int32(number) {
					continue
				}
				if !ok || s.Start < from {
					from = s.Start
				}
				to, ok = max(to, s.End), true
			}
		}
	}
	return from, to, ok
}

// order sorts loaders, tracks and spans.
func (t *Trace) order() {
	slices.SortStableFunc(t.Loaders,
		func(a, b *Loader) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.PID, b.PID)) })
	for _, l := range t.Loaders {
		slices.SortStableFunc(l.Tracks, func(a, b *Track) int { return cmp.Compare(a.Number, b.Number) })
		for _, track := range l.Tracks {
			slices.SortStableFunc(track.Spans,
				func(a, b Span) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End)) })
		}
	}
}

// shown returns text of another program, such as the name of a track, without characters that
// control a terminal.
func shown(text string) string {
	return strings.Map(func(r rune) rune {
		if r == 0x7f || r < ' ' || r >= 0x80 && r < 0xa0 {
			return '�'
		}
		return r
	}, text)
}
