package served

import (
	"fmt"
	"math"
	"strings"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/jobs"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
)

// counts are the counters of a server for one cache, beside those of the segment. They go on when
// another segment or source replaces the present one.
type counts struct {
	source wrap.Counts
	fill   fill.Stats
}

// Stats are what a server knows of a cache beyond its segment, since it first served a cache of
// that name. Fields are never renamed.
type Stats struct {
	Queued    int    `json:"queue_depth"`  // samples that have waiters and whose read has not begun
	Connected int    `json:"connected"`    // clients that could ask for samples now
	Reads     uint64 `json:"source_reads"` // samples read
	// fetches that needed no read of the source though the sample had no slot: a read for another client was
	// under way, or the server had kept the sample
	Shared    uint64 `json:"shared_reads"`
	Side      uint64 `json:"side_buffer_bytes"` // samples without a slot, kept for jobs that read them soon
	ReadBytes uint64 `json:"source_read_bytes"`
	// failed reads, after all tries, by kind; only kinds that occurred
	Errors map[string]uint64 `json:"source_errors"`
	// tries that failed, and were followed by another, by kind; only kinds that occurred
	Retries  map[string]uint64 `json:"source_retries"`
	Retrying int64             `json:"retrying_reads"` // reads that have failed and will be tried again
	Failures []wrap.Failing    `json:"failures"`       // those that are not over
	Bad      int               `json:"bad_samples"`    // samples that do not decode, of those read so far
	// reads that were given up (errors of kind unavailable) and have not returned yet
	Stuck     int    `json:"stuck_reads"`
	FillCount uint64 `json:"fill_count"` // samples read and stored
	// mean time from the start of a sample's read until it is stored; null before the first one
	FillMean *float64 `json:"fill_mean_seconds"`
	// 99 of 100 took no longer; an estimate between the bounds of the histogram
	FillP99 *float64 `json:"fill_p99_seconds"`
	// with the policy cost: what all loads cost, and of that their waits for the source; the rest is decoding
	Load   float64 `json:"load_seconds"`
	Source float64 `json:"source_wait_seconds"`
}

// Reads returns the counts of reads, those given up included, and the number of reads that hang.
func (h *Cache) Reads() (read wrap.Snapshot, stuck int) {
	read = h.counts.source.Snapshot()
	read.Errors[wrap.KindUnavailable] += h.counts.fill.GivenUp.Load()
	return read, h.filler.Stuck()
}

// Bad returns how many samples of the source were found not to decode.
func (h *Cache) Bad() int { return h.filler.Bad() }

// SideBytes returns how many bytes of samples without a slot the server keeps.
func (h *Cache) SideBytes() uint64 { return h.filler.Side() }

// SharedReads returns how many fetches needed no read of the source though the sample had no slot.
func (h *Cache) SharedReads() uint64 { return h.counts.fill.Shared.Load() }

// Jobs returns how many jobs have announced what they read, with the policy planned.
func (h *Cache) Jobs() int {
	if h.jobs == nil {
		return 0
	}
	return len(h.jobs.List())
}

func (h *Cache) stats() Stats {
	read, stuck := h.Reads()
	f := Stats{Queued: h.filler.Queued(), Connected: int(h.connected.Load()), Stuck: stuck, Reads: read.Samples,
		Shared: h.SharedReads(), Side: h.SideBytes(), Bad: h.Bad(),
		ReadBytes: read.Bytes, Errors: nonzero(read.Errors), Retries: nonzero(read.Tries),
		Retrying: h.failures.Retrying(), Failures: h.failing()}
	upTo, n, seconds := h.counts.fill.Fills.Snapshot()
	if f.FillCount = n; n > 0 {
		mean, p99 := seconds/float64(n), fill.Quantile(0.99, upTo, n)
		f.FillMean, f.FillP99 = &mean, &p99
	}
	f.Load, f.Source = h.counts.fill.Loads.Seconds()
	return f
}

// nonzero returns the counts that are not 0.
func nonzero(counts map[wrap.ErrorKind]uint64) map[string]uint64 {
	some := map[string]uint64{}
	for kind, n := range counts {
		if n > 0 {
			some[string(kind)] = n
		}
	}
	return some
}

// Failing returns for how many seconds each kind of failure lasts, 0 for those that are over, and how many reads are
// tried again now. The caller has entered.
func (h *Cache) Failing() (seconds map[wrap.ErrorKind]float64, retrying int64) {
	return wrap.Seconds(h.failing()), h.failures.Retrying()
}

// Epochs are what an epoch should do with as many samples as are cached now, and what the last one did. null:
// unknown. Fields are never renamed.
type Epochs struct {
	PredictedHitRate *float64 `json:"predicted_hit_rate"`
	ObservedHitRate  *float64 `json:"observed_hit_rate"`
	PredictedLoad    *float64 `json:"predicted_load_seconds"` // all loads of the epoch
	ObservedLoad     *float64 `json:"observed_load_seconds"`
	PredictedSaved   *float64 `json:"predicted_saved_seconds"` // loads that its hits save
	ObservedSaved    *float64 `json:"observed_saved_seconds"`
	ObservedEvicted  *float64 `json:"observed_evicted"` // samples that went for others
	NoPrediction     string   `json:"no_prediction"`    // why nothing is predicted; "": it is
}

// Epochs compares epochs of a cache, as `stocached advise` does. NaN: unknown; times are known with the policy cost only. why is not
// nil if nothing can be predicted yet. The caller has entered.
func (h *Cache) Epochs() (predicted, observed advise.Epoch, why error) {
	return h.track.Compare(h.Name, h.segment, h.cache)
}

// Compared makes Epochs of what a Track says.
func Compared(predicted, observed advise.Epoch, why error) *Epochs {
	known := func(v float64) *float64 {
		if math.IsNaN(v) {
			return nil
		}
		return &v
	}
	e := &Epochs{PredictedHitRate: known(predicted.HitRate), ObservedHitRate: known(observed.HitRate),
		PredictedLoad: known(predicted.Load), ObservedLoad: known(observed.Load),
		PredictedSaved: known(predicted.Saved), ObservedSaved: known(observed.Saved),
		ObservedEvicted: known(observed.Evicted)}
	if why != nil {
		e.NoPrediction = strings.TrimPrefix(why.Error(), advise.ErrUnknown.Error()+": ")
	}
	return e
}

// Status describes a cache to operators. Fields are never renamed.
type Status struct {
	Name        string `json:"name"`
	Path        string `json:"path"`
	UUID        string `json:"uuid"` // identity of the segment
	Samples     uint64 `json:"samples"`
	Slots       uint64 `json:"slots"` // 0 in a variable-size cache
	Variable    bool   `json:"variable"`
	Policy      string `json:"policy"`
	Bytes       uint64 `json:"segment_bytes"`
	Payload     uint64 `json:"payload_bytes"` // bytes for samples
	Fingerprint string `json:"fingerprint"`
	Source      string `json:"source"` // its kind
	// with decode: decoded or encoded, and with store: auto why
	Store   string `json:"store,omitempty"`
	Why     string `json:"store_reason,omitempty"`
	Adopted bool   `json:"adopted"` // it was warm when this server started
	// jobs that announced what they read, with the policy planned
	Jobs     []jobs.Status `json:"jobs,omitempty"`
	Core     uint64        `json:"core_samples,omitempty"` // samples that stay for all of them, while one hits less than its share
	Counters cache.Stats   `json:"stats"`
	// with a remote source: requests since it was opened
	Remote *Remote `json:"remote,omitempty"`
	// the tiers between segment and source, from fast to slow
	Tiers []tier.Status `json:"tiers,omitempty"`
	Stats
	*Epochs
}

// Status describes the cache. The caller has entered.
func (h *Cache) Status() (Status, error) {
	stats, err := h.cache.Stats()
	var all []jobs.Status
	core := uint64(0)
	if h.jobs != nil {
		h.jobs.Balance(h.cache.Fits())
		all, core = h.jobs.Statuses(), h.jobs.Core()
	}
	return Status{Name: h.Name, Path: h.segment.Path(), UUID: fmt.Sprintf("%x", h.segment.Header.UUID),
		Samples: h.segment.Samples, Slots: h.segment.SampleSlots(), Variable: h.segment.Variable(),
		Policy: h.segment.Policy.String(),
		Bytes:  h.segment.SegmentBytes, Payload: h.segment.PayloadBytes,
		Fingerprint: h.segment.Header.Fingerprint, Source: h.source.Info().Kind,
		Store: note(h.source, decode.StoreNote), Why: note(h.source, decode.ReasonNote),
		Adopted: h.adopted, Jobs: all, Core: core, Tiers: h.Tiers(), Remote: h.Remote(), Counters: stats, Stats: h.stats(), Epochs: Compared(h.Epochs())}, err
}

// Remote counts the requests to the server of a remote source. Fields are never renamed.
type Remote struct {
	Requests  uint64 `json:"requests"` // for parts of objects, also those that failed
	Bytes     uint64 `json:"bytes"`    // received
	Hedged    uint64 `json:"hedged"`   // second requests for reads that took long
	HedgesWon uint64 `json:"hedges_won"`
}

// Remote returns the counters of a remote source; nil: the source is local. The caller has entered.
func (h *Cache) Remote() *Remote {
	t := h.source.Info().Traffic
	if t == nil {
		return nil
	}
	return &Remote{t.Requests.Load(), t.Bytes.Load(), t.Hedged.Load(), t.HedgesWon.Load()}
}

// note returns the text of a note of a source; "": it has none of that name.
func note(s source.Source, name string) string {
	for _, n := range s.Info().Notes {
		if n.Name == name {
			return n.Text
		}
	}
	return ""
}

// FillTimes returns for each bound how many fills took no longer, the number of all fills, and the
// sum of their seconds.
func (h *Cache) FillTimes() (upTo map[float64]uint64, count uint64, sum float64) {
	return h.counts.fill.Fills.Snapshot()
}
