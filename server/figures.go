package server

// figures are what a server knows of a cache beyond its segment, since it began. Fields are never renamed.
type figures struct {
	Queued    int               `json:"queue_depth"`  // samples that clients wait for and that are not being read yet
	Reads     uint64            `json:"source_reads"` // samples read
	ReadBytes uint64            `json:"source_read_bytes"`
	Errors    map[string]uint64 `json:"source_errors"`     // reads that failed, after all tries, by kind; kinds that occurred
	FillCount uint64            `json:"fill_count"`        // samples read and stored
	FillMean  *float64          `json:"fill_mean_seconds"` // from the begin of a sample's read until it was stored; null before the first one
	FillP99   *float64          `json:"fill_p99_seconds"`  // 99 of 100 took no longer; between the bounds of the histogram it is estimated
}

func (h *hosted) figures() figures {
	read := h.counts.Snapshot()
	f := figures{Queued: h.filler.queued(), Reads: read.Samples, ReadBytes: read.Bytes, Errors: map[string]uint64{}}
	for kind, n := range read.Errors {
		if n > 0 {
			f.Errors[string(kind)] = n
		}
	}
	upTo, n, seconds := h.filler.seconds.snapshot()
	if f.FillCount = n; n > 0 {
		mean, p99 := seconds/float64(n), quantile(0.99, upTo, n)
		f.FillMean, f.FillP99 = &mean, &p99
	}
	return f
}
