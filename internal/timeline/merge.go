package timeline

import (
	"fmt"
	"math"
)

// tick is the unit of times in a file, in nanoseconds.
const tick = 125

// Merge puts the loaders of several traces on one time line, which begins with the earliest. It
// owns the traces from then on. It places traces of one boot of a machine by the monotonic clock,
// others by the time of day.
func Merge(traces ...*Trace) (*Trace, error) {
	all := &Trace{}
	seen := map[Clock]int{}
	numbers := map[string]uint16{}
	for _, t := range traces {
		for _, l := range t.Loaders {
			if rank, again := seen[l.Clock]; again && rank == l.Rank && l.Clock != (Clock{}) {
				return nil, fmt.Errorf("the recording of rank %d comes twice: give each file once", l.Rank)
			}
			seen[l.Clock] = l.Rank
			for _, track := range l.Tracks {
				for k := range track.Spans {
					if s := &track.Spans[k]; s.Kind == Other {
						name := t.names[s.name]
						n, ok := numbers[name]
						if !ok {
							if len(numbers) > math.MaxUint16 {
								return nil, fmt.Errorf("more than %d names of spans", math.MaxUint16)
							}
							n = uint16(len(numbers))
							numbers[name] = n
							all.names = append(all.names, name)
						}
						s.name = n
					}
				}
			}
			all.Loaders = append(all.Loaders, l)
		}
	}
	if len(all.Loaders) == 0 {
		return all, nil
	}
	reference := map[string]Clock{} // one of each boot, so that its loaders stay aligned
	starts := make([]int64, len(all.Loaders))
	for k, l := range all.Loaders {
		r, ok := reference[l.Clock.Boot]
		if !ok || l.Clock.Boot == "" {
			r = l.Clock
			reference[l.Clock.Boot] = r
		}
		starts[k] = r.UnixNS + l.Clock.MonotonicNS - r.MonotonicNS
	}
	origin := starts[0]
	for _, start := range starts {
		origin = min(origin, start)
	}
	for k, l := range all.Loaders {
		l.shift((starts[k] - origin + tick/2) / tick * tick)
	}
	all.order()
	for k, l := range all.Loaders {
		l.PID = k + 1
	}
	return all, nil
}

// shift moves all times of a loader.
func (l *Loader) shift(by int64) {
	for _, track := range l.Tracks {
		for k := range track.Spans {
			track.Spans[k].Start += by
			track.Spans[k].End += by
		}
	}
	l.Clock.MonotonicNS -= by
	l.Clock.UnixNS -= by
	if l.DroppedFrom != nil {
		from := *l.DroppedFrom + float64(by)/1000
		l.DroppedFrom = &from
	}
}
