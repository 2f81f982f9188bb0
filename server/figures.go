package server

import (
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/source/wrap"
)

// tally is what a server counts of a cache besides what its segment does. It goes on when another segment or source takes the place of one.
type tally struct {
	source wrap.Counts
	fill   fill.Stats
}

// figures are what a server knows of a cache beyond its segment, since it began to host one of that name. Fields are never renamed.
type figures struct {
	Queued    int               `json:"queue_depth"`  // samples that clients wait for and that are not being read yet
	Connected int               `json:"connected"`    // clients that could ask for samples now
	Reads     uint64            `json:"source_reads"` // samples read
	ReadBytes uint64            `json:"source_read_bytes"`
	Errors    map[string]uint64 `json:"source_errors"`     // reads that failed, after all tries, by kind; kinds that occurred
	Stuck     int               `json:"stuck_reads"`       // that were given up (errors of kind timeout), and have not returned yet
	FillCount uint64            `json:"fill_count"`        // samples read and stored
	FillMean  *float64          `json:"fill_mean_seconds"` // from the begin of a sample's read until it was stored; null before the first one
	FillP99   *float64          `json:"fill_p99_seconds"`  // 99 of 100 took no longer; between the bounds of the histogram it is estimated
}

// reads returns what was read of the source, with the reads that were given up, and how many of those hang.
func (h *hosted) reads() (read wrap.Snapshot, stuck int) {
	read = h.tally.source.Snapshot()
	read.Errors[wrap.KindTimeout] += h.tally.fill.GivenUp.Load()
	return read, h.filler.Stuck()
}

func (h *hosted) figures() figures {
	read, stuck := h.reads()
	f := figures{Queued: h.filler.Queued(), Connected: int(h.connected.Load()), Stuck: stuck, Reads: read.Samples, ReadBytes: read.Bytes, Errors: map[string]uint64{}}
	for kind, n := range read.Errors {
		if n > 0 {
			f.Errors[string(kind)] = n
		}
	}
	upTo, n, seconds := h.tally.fill.Fills.Snapshot()
	if f.FillCount = n; n > 0 {
		mean, p99 := seconds/float64(n), fill.Quantile(0.99, upTo, n)
		f.FillMean, f.FillP99 = &mean, &p99
	}
	return f
}
