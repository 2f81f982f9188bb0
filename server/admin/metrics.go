package admin

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/server/session"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"

	"github.com/prometheus/client_golang/prometheus"
)

// collector makes metrics on request, from what segments and fillers count anyway. The path of a
// read counts nothing extra.
type collector struct{ host *Host }

// Describe sends nothing, so that each metric stands in one place, where it is read. The registry checks names and
// labels then.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads every cache once.
func (c collector) Collect(out chan<- prometheus.Metric) {
	beside := failingBeside(c.host.Beside())
	for _, h := range c.host.Caches() {
		if h.Enter() {
			collect(h, beside[h.Name], out)
			delete(beside, h.Name)
			h.Leave()
		}
	}
	for name, f := range beside {
		gauge, counter := perCache(name, out)
		failures(f, gauge, counter)
	}
	for kind, s := range map[string]*session.Budget{"waiting": c.host.Replies, "requests": c.host.Requests} {
		used, limit := s.Usage()
		send(out, prometheus.GaugeValue, "client_bytes", "Memory of connections now: of samples and answers that "+
			"wait, and of requests under way.", float64(used), "kind", kind)
		send(out, prometheus.GaugeValue, "client_bytes_limit", "The limit of stocached_client_bytes (limits.clients).",
			float64(limit), "kind", kind)
	}
	c.server(out)
	if space, err := memory.Usable(0); err == nil {
		send(out, prometheus.GaugeValue, "limit_bytes", "The tightest limit on the memory of this server: of the machine, or "+
			"of a cgroup.", float64(space.Total))
		send(out, prometheus.GaugeValue, "memory_left_bytes", "Memory that caches may still fill under stocached_limit_bytes.",
			float64(space.Left))
	}
	for name, leftOut := range c.host.IsLeftOut() {
		send(out, prometheus.GaugeValue, "left_out",
			"1 for a cache of the configuration that this server could not make or adopt.", oneIf(leftOut), "cache", name)
	}
}

// server reads what is not about caches.
func (c collector) server(out chan<- prometheus.Metric) {
	revision := "unknown"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, one := range build.Settings {
			if one.Key == "vcs.revision" {
				revision = one.Value
			}
		}
	}
	send(out, prometheus.GaugeValue, "build_info", "1: the server has this version.", 1, "version", c.host.Version, "revision",
		revision, "goversion", runtime.Version())
	at, err := c.host.LastReload()
	send(out, prometheus.GaugeValue, "reload_success", "1: the last reload of the configuration succeeded, or there was none.",
		oneIf(err == nil))
	send(out, prometheus.GaugeValue, "reload_time_seconds", "When the last reload was, or the server started, in seconds since 1970.",
		float64(at.UnixMilli())/1000)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// send sends a metric. labels are the name of each label and its value.
func send(out chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, v float64, labels ...string) {
	with := prometheus.Labels{}
	for k := 0; k < len(labels); k += 2 {
		with[labels[k]] = labels[k+1]
	}
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc("stocached_"+name, help, nil, with), kind, v)
}

// collect reads the metrics of one cache. The caller has entered it.
func collect(h *served.Cache, beside *failing, out chan<- prometheus.Metric) {
	stats, err := h.Client().Stats()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	gauge, counter := perCache(h.Name, out)
	segment := h.Segment()
	gauge("samples", "Samples of the dataset.", float64(segment.Samples))
	gauge("slots", "Slots for samples; 0 in a variable-size cache, which has an arena.", float64(segment.SampleSlots()))
	gauge("slots_filled", "Samples in the cache now.", float64(stats.Ready))
	gauge("clients", "Live clients, this server among them.", float64(stats.ClientsLive))
	gauge("queue_depth", "Samples that have waiters and whose read has not begun.", float64(h.Filler().Queued()))
	gauge("policy", "1: the cache has this policy.", 1, "policy", segment.Policy.String())
	gauge("jobs", "Jobs that have announced what they read; 0 with every policy except planned.", float64(h.Jobs()))
	counter("hits_total", "Samples found by clients, since the cache was created.", stats.Hits)
	counter("misses_total", "Samples requested by clients and missing, since the cache was created.", stats.Misses)
	gauge("segment_bytes", "Size of the segment: the most memory that it takes.", float64(segment.SegmentBytes))
	gauge("allocated_bytes", "Memory that the segment has now.", float64(stats.AllocatedBytes))
	counter("full_total", "Sets that found no slot, no arena space or no memory, since the cache was created.", stats.Full)
	counter("fills_total", "Samples stored, by this server and by others, since the cache was created.", stats.Stored)
	counter("fill_bytes_total", "Bytes of the samples stored.", stats.StoredBytes)
	counter("recovered_slots_total", "Reclaimed claims of dead clients, since the cache was created.", stats.Recovered)
	counter("evicted_total", "Samples that went for others, since the cache was created.", stats.Evicted)
	epochs(h, stats.Costs, gauge)
	if segment.Chains() {
		for use, n := range map[string]uint64{"samples": stats.ArenaNextBytes - stats.ArenaLostBytes,
			"ends": stats.ArenaLostBytes, "free": segment.PayloadBytes - stats.ArenaNextBytes} {
			gauge("arena_bytes", "Bytes of the arena of a variable-size cache that evicts, by use: samples; ends "+
				"(unused ends of slots, and slots that are being filled); free (slots).", float64(n), "use", use)
		}
	}
	read, stuck := h.Reads()
	counter("source_reads_total", "Samples read from the source by this server.", read.Samples)
	counter("source_read_bytes_total", "Bytes of the samples read from the source.", read.Bytes)
	counter("shared_reads_total", "Fetches that needed no read of the source though the sample had no slot.",
		h.SharedReads())
	if segment.Policy == shm.PolicyPlanned {
		gauge("side_buffer_bytes", "Bytes of samples without a slot that the server keeps for jobs that read them soon.",
			float64(h.SideBytes()))
	}
	gauge("stuck_reads", "Reads of the source that took too long, were given up (and counted as errors of kind "+
		"unavailable), and have not returned yet.", float64(stuck))
	f := &failing{read: read}
	f.seconds, f.retrying = h.Failing()
	f.add(beside)
	failures(f, gauge, counter)
	gauge("memory_short", "1: the cache has free places, and memory for them is short, or was in the last minute.",
		oneIf(f.seconds[wrap.KindMemory] > 0))
	gauge("bad_samples", "Samples that do not decode, of those read so far. With bad_samples: skip only.",
		float64(h.Bad()))
	if remote := h.Remote(); remote != nil {
		counter("remote_requests_total", "Requests for parts of objects, sent to the server of a remote source.",
			remote.Requests)
		counter("remote_bytes_total", "Bytes of objects received from the server of a remote source.", remote.Bytes)
		counter("remote_hedged_total", "Second requests for reads that took longer than 99 of 100.", remote.Hedged)
		counter("remote_hedges_won_total", "Second requests that were faster than the first.", remote.HedgesWon)
	}
	tiers(h.Tiers(), gauge, counter)
	upTo, count, sum := h.FillTimes()
	histogram := func(name, help string, upTo map[float64]uint64, count uint64, sum float64) {
		out <- prometheus.MustNewConstHistogram(prometheus.NewDesc("stocached_"+name, help, nil,
			prometheus.Labels{"cache": h.Name}), count, sum, upTo)
	}
	histogram("fill_seconds", "Time from the start of a sample's read until it is stored, by this server.", upTo, count, sum)
	bounds := map[float64]uint64{}
	for k, bound := range wrap.SecondsBounds {
		bounds[bound] = read.Seconds[k]
	}
	histogram("source_seconds", "Time that a read of the source took, with all its tries. Reads that failed count too.", bounds,
		read.Reads+read.BlockReads, read.SecondsSum)
}

// perCache returns functions that send metrics of a cache.
func perCache(cache string, out chan<- prometheus.Metric) (gauge func(name, help string, v float64, labels ...string),
	counter func(name, help string, v uint64, labels ...string)) {
	return func(name, help string, v float64, labels ...string) {
			send(out, prometheus.GaugeValue, name, help, v, append(labels, "cache", cache)...)
		}, func(name, help string, v uint64, labels ...string) {
			send(out, prometheus.CounterValue, name, help, float64(v), append(labels, "cache", cache)...)
		}
}

// failing is what fails under one name.
type failing struct {
	read     wrap.Snapshot
	seconds  map[wrap.ErrorKind]float64
	retrying int64
}

// failingBeside sums up reads beside those of served caches, by name: a reload may open a cache that is served.
func failingBeside(all []Beside) map[string]*failing {
	sums := map[string]*failing{}
	for _, b := range all {
		f := &failing{seconds: wrap.Seconds(b.Failures.Now()), retrying: b.Failures.Retrying()}
		if b.Counts != nil {
			f.read = b.Counts.Snapshot()
		}
		f.add(sums[b.Cache])
		sums[b.Cache] = f
	}
	return sums
}

// add adds what another one says of the present; nil: nothing.
func (f *failing) add(other *failing) {
	if other == nil {
		return
	}
	f.retrying += other.retrying
	for kind, s := range other.seconds {
		f.seconds[kind] = max(f.seconds[kind], s)
	}
}

// failures sends what fails.
func failures(f *failing, gauge func(name, help string, v float64, labels ...string),
	counter func(name, help string, v uint64, labels ...string)) {
	for kind, n := range f.read.Errors {
		counter("source_errors_total", "Reads of the source that failed, after all tries.", n, "kind", string(kind))
	}
	for kind, n := range f.read.Tries {
		counter("source_retries_total", "Tries to read the source that failed, and were followed by another.", n, "kind",
			string(kind))
	}
	gauge("retrying_reads", "Reads of the source that have failed and will be tried again.", float64(f.retrying))
	for kind, s := range f.seconds {
		gauge("failing_seconds", "Time since the first failure of this kind; 0: none, or it is over. Those of the data last "+
			"until the source is opened again, others until none has come for a minute.", s, "kind", string(kind))
	}
}

// tiers reads those of the tiers of a cache.
func tiers(all []tier.Status, gauge func(name, help string, v float64, labels ...string),
	counter func(name, help string, v uint64, labels ...string)) {
	for k, t := range all {
		which := []string{"tier", fmt.Sprint(k), "kind", t.Kind}
		for _, one := range []struct {
			name, help string
			v          uint64
		}{
			{"hits", "Samples that a tier had, counted as no read of the source.", t.Hits},
			{"hit_bytes", "Bytes of the samples that a tier had.", t.HitBytes},
			{"misses", "Samples that a tier was asked for and did not have.", t.Misses},
			{"skipped", "Samples that a tier was not asked for, or not answered, because a node was left out.", t.LeftOut},
			{"writes", "Samples written to a tier.", t.Writes},
			{"write_bytes", "Bytes of the samples written to a tier.", t.WriteBytes},
			{"dropped", "Samples not written to a tier: its queue was full, or the node left out or full.", t.Dropped},
			{"refused", "Writes that a full node of a tier has refused.", t.Refused},
			{"poisoned", "Values of a tier whose checks failed.", t.Poisoned},
			{"openings", "How often a node of a tier was left out.", t.Openings},
			{"waits", "Reads that waited for the load of another machine.", t.Waited},
			{"waits_given_up", "Waits for the load of another machine that were given up.", t.GaveUp},
		} {
			counter("tier_"+one.name+"_total", one.help, one.v, which...)
		}
		gauge("tier_queued_bytes", "Bytes of samples that wait to be written to a tier.", float64(t.Queued), which...)
		for _, n := range t.Nodes {
			gauge("tier_left_out", "1: this node of a tier is left out now.", oneIf(n.LeftOut),
				append(slices.Clone(which), "node", n.Address)...)
		}
	}
}

// epochs reads what an epoch should do and what the last one did, and with the policy cost what loads cost.
func epochs(h *served.Cache, stats cache.CostStats, gauge func(name, help string, v float64, labels ...string)) {
	predicted, observed, _ := h.Epochs()
	gauge("predicted_hit_rate", "Hit rate of an epoch with as many samples as are cached now, in one job that reads each once. "+
		"NaN: nothing can be predicted, for example because no load was measured; stocached stats says why.", predicted.HitRate)
	gauge("observed_hit_rate", "Hit rate of the last epoch, which is as many reads as there are samples. NaN: there "+
		"were fewer reads since this server has the cache.", observed.HitRate)
	gauge("observed_evicted", "Samples that went for others in the last epoch. NaN as for stocached_observed_hit_rate.",
		observed.Evicted)
	if h.Segment().Policy != shm.PolicyCost {
		return
	}
	for _, one := range []struct {
		name, help string
		v          float64
	}{
		{"known_costs", "Samples whose load was measured, cached or not.", float64(stats.Known)},
		{"saved_seconds", "Time to load the cached samples once, which an epoch need not spend, as measured.",
			stats.SavedSeconds},
		{"first_come_saved_seconds", "Time to load as many bytes of random samples once, on average: what first-come would save.",
			stats.FirstComeSeconds()},
		{"predicted_load_seconds", "Time that the loads of an epoch take, as stocached advise predicts. NaN as for " +
			"stocached_predicted_hit_rate.", predicted.Load},
		{"observed_load_seconds", "Time that the loads of the last epoch took. NaN as for " +
			"stocached_observed_hit_rate.", observed.Load},
		{"predicted_saved_seconds", "Time that the hits of an epoch save, as stocached advise predicts. NaN as for " +
			"stocached_predicted_hit_rate.", predicted.Saved},
		{"observed_saved_seconds", "Loads of an epoch without a cache, as stocached advise adds them up, less those " +
			"of the last epoch. NaN as for both hit rates.", observed.Saved},
	} {
		gauge(one.name, one.help+" With the policy cost only.", one.v)
	}
}
