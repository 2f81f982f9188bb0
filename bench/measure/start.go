package measure

import (
	"errors"
	"time"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/source"
)

// Starts measures the time from a server's start until it serves, with an index of very many
// samples beside its files. Cold: it makes a segment. Warm: it adopts one. kind is tar or block.
// The index stays; the first start, which may have to make it, is not measured. The second
// measurement is the server's own memory at that time.
func Starts(b *Box, kind string, samples, runs int) (all []report.Measurement, err error) {
	make := map[string]func(int) (source.Settings, error){"tar": b.Data.hugeTar, "block": b.Data.hugeBlock}[kind]
	s, err := make(samples)
	if err != nil {
		return nil, err
	}
	huge := b.cache("huge", s)
	huge.Size = "1GiB" // the control part uses some of it; no sample is filled
	var times [2][]float64
	var own []float64
	err = rounds(runs, 1, func(_ int, measured bool) error {
		for warm := range times {
			h, err := b.serve("huge", huge)
			if err != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond) // the garbage of the start is collected
			bytes, err := anonymous(h.pid())
			if measured {
				times[warm] = append(times[warm], h.started.Seconds())
				own = append(own, float64(bytes)/1e6)
			}
			end := h.stop
			if warm == 1 {
				end = h.end
			}
			if err := errors.Join(err, end()); err != nil {
				return err
			}
		}
		return nil
	})
	return []report.Measurement{
		{Case: "server/start-" + kind, Subjects: []report.Subject{{Name: "cold", Samples: 1, Value: times[0]},
			{Name: "warm", Samples: 1, Value: times[1]}}},
		{Case: "server/memory-" + kind, Note: "RssAnon, just after the start",
			Subjects: []report.Subject{{Name: "server", Unit: bytesMB, Samples: 1, Value: own}}},
	}, err
}
