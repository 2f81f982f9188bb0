package admin

import (
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/server/session"
	"github.com/stocached/stocached/shm"

	"github.com/prometheus/client_golang/prometheus"
)

// collector makes metrics on request, from what segments and fillers count anyway. The path of a
// read counts nothing extra.
type collector struct{ host *Host }

// desc describes a metric. Its first label is the cache.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("stocached_"+name, help, append([]string{"cache"}, labels...), nil)
}

var (
	descSamples   = desc("samples", "Samples of the dataset.")
	descSlots     = desc("slots", "Slots for samples; 0 in a variable-size cache, which has an arena.")
	descFilled    = desc("slots_filled", "Samples in the cache now.")
	descClients   = desc("clients", "Live clients, this server among them.")
	descHits      = desc("hits_total", "Samples found by clients, since the cache was created.")
	descMisses    = desc("misses_total", "Samples requested by clients and missing, since the cache was created.")
	descFills     = desc("fills_total", "Samples stored, by this server and by others, since the cache was created.")
	descFillBytes = desc("fill_bytes_total", "Bytes of these.")
	descReads     = desc("source_reads_total", "Samples read from the source by this server.")
	descReadBytes = desc("source_read_bytes_total", "Bytes of these.")
	descShared    = desc("shared_reads_total", "Fetches that got a sample from a read for another client.")
	descErrors    = desc("source_errors_total", "Reads of the source that failed, after all tries.", "kind")
	descBad       = desc("bad_samples", "Samples that do not decode, of those read so far. With bad_samples: skip only.")
	descSeconds   = desc("fill_seconds", "Time from the begin of a sample's read until it is stored, by this server.")
	descPolicy    = desc("policy", "1: the cache has this policy.", "policy")
	descEvicted   = desc("evicted_total", "Samples that went for others, since the cache was created.")
	descArena     = desc("arena_bytes", "Bytes of the arena of a variable-size cache that evicts, by use: samples; ends "+
		"(unused ends of slots, and slots that are being filled); free (slots).", "use")
	descCosts = desc("known_costs", "Samples whose load was measured, cached or not. With the policy cost only.")
	descSaved = desc("saved_seconds", "Time to load the cached samples once, which an epoch need not spend, as "+
		"measured. With the policy cost only.")
	descFirstCome = desc("first_come_saved_seconds", "What as many samples of mean cost save, as with the policy "+
		"first-come. With the policy cost only.")
	descPredictedHits = desc("predicted_hit_rate", "Hit rate of an epoch with as many samples as are cached now, each "+
		"read once. NaN: nothing can be predicted yet, because no load was measured. With the policy cost only.")
	descObservedHits = desc("observed_hit_rate", "Hit rate of the last epoch, which is as many reads as there are "+
		"samples. NaN: there were fewer reads since this server has the cache. With the policy cost only.")
	descPredictedLoad = desc("predicted_load_seconds", "Time that the loads of an epoch take, as stocached advise "+
		"predicts. NaN as for stocached_predicted_hit_rate. With the policy cost only.")
	descObservedLoad = desc("observed_load_seconds", "Time that the loads of the last epoch took. NaN as for "+
		"stocached_observed_hit_rate. With the policy cost only.")
	descPredictedSaved = desc("predicted_saved_seconds", "Time that the hits of an epoch save, as stocached advise "+
		"predicts. NaN as for stocached_predicted_hit_rate. With the policy cost only.")
	descObservedSaved = desc("observed_saved_seconds", "Loads of an epoch without a cache, as stocached advise adds "+
		"them up, less those of the last epoch. NaN as for both hit rates. With the policy cost only.")
	descObservedEvicted = desc("observed_evicted", "Samples that went for others in the last epoch. NaN as for "+
		"stocached_observed_hit_rate. With the policy cost only.")
	descJobs      = desc("jobs", "Jobs that have announced what they read; 0 with every policy except planned.")
	descRecovered = desc("recovered_slots_total",
		"Reclaimed claims of dead clients, since the cache was created.")
	descStuck = desc("stuck_reads", "Reads of the source that took too long, were given up (and counted as "+
		"errors of kind timeout), and have not returned yet.")
	descLeftOut = desc("left_out", "1 for a cache of the configuration that this server could not make or adopt.")
	descQueue   = desc("queue_depth", "Samples that have waiters and whose read has not begun.")
)

// Metrics of all connections together, without the label of a cache.
var (
	descWaiting = prometheus.NewDesc("stocached_client_bytes",
		"Memory of connections now: of samples and answers that wait, and of requests under way.", []string{"kind"},
		nil)
	descLimit = prometheus.NewDesc("stocached_client_bytes_limit", "The limit of this memory (limits.clients).",
		[]string{"kind"}, nil)
)

// Describe sends the descriptions of all metrics.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSamples, descSlots, descFilled, descClients, descHits, descMisses,
		descFills, descFillBytes, descReads, descReadBytes, descShared, descErrors, descBad,
		descPolicy, descEvicted, descArena, descCosts, descSaved, descFirstCome, descJobs,
		descPredictedHits, descObservedHits, descPredictedLoad, descObservedLoad, descPredictedSaved, descObservedSaved,
		descObservedEvicted,
		descSeconds, descRecovered, descQueue, descStuck, descLeftOut, descWaiting, descLimit} {
		out <- d
	}
}

// Collect reads every cache once.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, h := range c.host.Caches() {
		if h.Enter() {
			collect(h, out)
			h.Leave()
		}
	}
	for kind, s := range map[string]*session.Budget{"waiting": c.host.Replies, "requests": c.host.Requests} {
		used, limit := s.Usage()
		out <- prometheus.MustNewConstMetric(descWaiting, prometheus.GaugeValue, float64(used), kind)
		out <- prometheus.MustNewConstMetric(descLimit, prometheus.GaugeValue, float64(limit), kind)
	}
	for name, leftOut := range c.host.Missing() {
		out <- prometheus.MustNewConstMetric(descLeftOut, prometheus.GaugeValue, leftOut, name)
	}
}

// collect reads the metrics of one cache. The caller has entered it.
func collect(h *served.Cache, out chan<- prometheus.Metric) {
	stats, err := h.Client().Stats()
	if err != nil {
		out <- prometheus.NewInvalidMetric(descSamples, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, h.Name)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v),
			append([]string{h.Name}, labels...)...)
	}
	gauge(descSamples, float64(h.Segment().Samples))
	gauge(descSlots, float64(h.Segment().SampleSlots()))
	gauge(descFilled, float64(stats.Ready))
	gauge(descClients, float64(stats.ClientsLive))
	gauge(descQueue, float64(h.Filler().Queued()))
	counter(descHits, stats.Hits)
	counter(descMisses, stats.Misses)
	counter(descFills, stats.Stored)
	counter(descFillBytes, stats.StoredBytes)
	counter(descRecovered, stats.Recovered)
	counter(descEvicted, stats.Evicted)
	policy := h.Segment().Policy
	out <- prometheus.MustNewConstMetric(descPolicy, prometheus.GaugeValue, 1, h.Name, policy.String())
	if policy == shm.PolicyCost {
		gauge(descCosts, float64(stats.Costs.Known))
		gauge(descSaved, stats.Costs.SavedSeconds)
		gauge(descFirstCome, stats.Costs.FirstComeSeconds())
		predicted, observed, _ := h.Epochs()
		gauge(descPredictedHits, predicted.HitRate)
		gauge(descObservedHits, observed.HitRate)
		gauge(descPredictedLoad, predicted.Load)
		gauge(descObservedLoad, observed.Load)
		gauge(descPredictedSaved, predicted.Saved)
		gauge(descObservedSaved, observed.Saved)
		gauge(descObservedEvicted, observed.Evicted)
	}
	if h.Segment().Chains() {
		for use, n := range map[string]uint64{"samples": stats.ArenaNextBytes - stats.ArenaLostBytes,
			"ends": stats.ArenaLostBytes, "free": h.Segment().PayloadBytes - stats.ArenaNextBytes} {
			out <- prometheus.MustNewConstMetric(descArena, prometheus.GaugeValue, float64(n), h.Name, use)
		}
	}
	gauge(descJobs, float64(h.Jobs()))
	read, stuck := h.Reads()
	counter(descReads, read.Samples)
	counter(descReadBytes, read.Bytes)
	counter(descShared, h.SharedReads())
	gauge(descStuck, float64(stuck))
	gauge(descBad, float64(h.Bad()))
	for kind, n := range read.Errors {
		counter(descErrors, n, string(kind))
	}
	upTo, count, sum := h.FillTimes()
	out <- prometheus.MustNewConstHistogram(descSeconds, count, sum, upTo, h.Name)
}
