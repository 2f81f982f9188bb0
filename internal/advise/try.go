package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Try is a change that makes epochs shorter, or as short with less.
type Try struct {
	Kind    string  // one of Kinds
	Setting string  // what to change
	Seconds float64 // time that an epoch takes then; NaN: the model does not say
	Why     string  // "": the seconds say it
}

// Kinds of tries, and the subject of each.
var Kinds = []struct{ Kind, Help string }{
	{"workers", "another number of workers"},
	{"cache", "memory for samples"},
	{"both", "the two before together"},
	{"augment", "a cheaper random part, or cheaper batches: workers make both for hits too"},
	{"gather", "less to copy"},
	{"transfer", "pinned memory"},
	{"server", "a cache that is filled before training"},
	{"step", "a faster step: the loader keeps up"},
	{"prefetch", "more batches ahead: single slow samples stall the training loop"},
	{"batch", "larger batches: each batch has a cost of its own"},
	{"start", "persistent workers: they start again in each epoch"},
}

const (
	better   = 0.97 // share of the time of an epoch: more is noise
	large    = 0.1  // part of the time from which on a wait counts that the model does not know
	crowding = 4    // times the processors: the most workers that are tried
)

// Tries returns what to change, the largest gain first. memory: for samples; 0: as much as helps.
func (c *Curve) Tries(memory uint64) (tries []Try) {
	policy, load := FirstCome, c.Today.Load
	if c.Today.Policy == Cost.String() {
		policy = Cost
	}
	load = cmp.Or(load, c.Load*(1-c.Saving(policy, c.Today.Part)))
	now, limit := c.Pace.Epoch(load)
	workers := c.workers(load, now)
	cached, left := c.cached(memory, now)
	for _, t := range []*Try{workers, cached} {
		if t != nil {
			tries = append(tries, *t)
		}
	}
	if workers != nil && cached != nil {
		pace := c.Pace
		both := Try{Kind: "both", Setting: workers.Setting + ", " + cached.Setting}
		_, _ = fmt.Sscanf(workers.Setting, "num_workers=%d", &pace.Workers)
		if both.Seconds, _ = pace.Epoch(left); both.Seconds < better*min(workers.Seconds, cached.Seconds) {
			tries = append(tries, both)
		}
	}
	if t := c.without(limit, load); t != nil && (t.Seconds < better*now || len(tries) == 0) {
		tries = append(tries, *t)
	}
	if c.Run != nil {
		tries = append(tries, c.unexplained(now)...)
	}
	known := func(t Try) float64 {
		if math.IsNaN(t.Seconds) {
			return math.Inf(1)
		}
		return t.Seconds
	}
	slices.SortStableFunc(tries, func(a, b Try) int { return cmp.Compare(known(a), known(b)) })
	return tries
}

// workers returns the least number of workers with which an epoch is about as short as with any; nil: the present one.
func (c *Curve) workers(load, now float64) *Try {
	if !c.Loop {
		return nil
	}
	with := func(n int) float64 {
		pace := c.Pace
		pace.Workers = n
		seconds, _ := pace.Epoch(load)
		return seconds
	}
	most := crowding * c.Pace.CPUs
	if c.Pace.Source == nil { // loads may compute only
		most = c.Pace.CPUs
	}
	best, need := with(0), 0
	for n := range max(most, c.Pace.Workers) + 1 {
		best = min(best, with(n))
	}
	for with(need)*better > best {
		need++
	}
	t := &Try{Kind: "workers", Setting: fmt.Sprintf("num_workers=%d", need), Seconds: with(need)}
	switch {
	case need < c.Pace.Workers && better*t.Seconds <= now:
		t.Why = "so many are enough, and leave processors to the step"
	case t.Seconds >= better*now:
		return nil
	case c.Pace.CPUs > 0 && need > c.Pace.CPUs:
		t.Why = fmt.Sprintf("there are %d processors, and more workers help as far as loads wait for their source", c.Pace.CPUs)
	}
	return t
}

// cached returns what memory buys, and the time of the loads that are left; nil: nothing.
func (c *Curve) cached(memory uint64, now float64) (t *Try, left float64) {
	at := func(p Policy) (part, seconds float64) {
		if part = c.Part(memory); memory == 0 {
			part = c.Enough(p)
		}
		seconds, _ = c.Epoch(p, part)
		return part, seconds
	}
	policy := FirstCome
	part, seconds := at(FirstCome)
	if p, s := at(Cost); s < better*seconds || p < better*part {
		policy, part, seconds = Cost, p, s
	}
	if part <= c.Today.Part || seconds >= better*now {
		return nil, 0
	}
	bytes := c.Bytes(part)
	t = &Try{Kind: "cache", Setting: fmt.Sprintf("size=%q", gib(bytes)), Seconds: seconds}
	if policy == Cost {
		t.Setting += `, policy="cost"`
	}
	if e := c.Run; e != nil && e.Hits == 0 && e.Loader.Settings["size"] != nil {
		t.Why = "all samples were loaded, as in an epoch that fills a cache: the next one may be there"
	}
	return t, c.Load * (1 - c.Saving(policy, part))
}

// gib is a size as the parameter size= takes it.
func gib(bytes uint64) string {
	for _, unit := range []struct {
		name  string
		bytes uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= unit.bytes {
			return fmt.Sprintf("%.3g %s", math.Ceil(float64(bytes)/float64(unit.bytes)*10)/10, unit.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

// without returns what to do about a limit that neither workers nor memory change, with the time of an epoch if it were
// gone; nil: loads are the limit.
func (c *Curve) without(limit string, load float64) *Try {
	advice, known := map[string]Try{
		augmenting: {Kind: "augment", Setting: "a cheaper augment=, or batch_augment= on the device"},
		collating:  {Kind: "augment", Setting: "samples of fewer bytes, such as uint8, or a cheaper collate_fn="},
		"gathering": {Kind: "gather", Setting: "samples of fewer bytes, such as uint8, or more gather_threads=",
			Why: "the memory is the limit then"},
		"transfers":  {Kind: "transfer", Setting: "pin_memory=True, and non_blocking=True where batches are moved"},
		"the server": {Kind: "server", Setting: "stocached warm before training"},
		Step:         {Kind: "step", Setting: "a faster step", Why: "the loader keeps up"},
	}[limit]
	if !known {
		return nil
	}
	if limit == Step && c.Run != nil && c.Run.Work.BatchAugment > c.Run.Step {
		advice = Try{Kind: "augment", Setting: "a cheaper batch_augment=, or the same in augment=, which workers run"}
	}
	pace := c.Pace
	if limit == augmenting || limit == collating {
		pace.Augment = 0
	}
	pace.Limits = slices.DeleteFunc(slices.Clone(pace.Limits), func(l Limit) bool { return l.Name == limit })
	advice.Seconds, _ = pace.Epoch(load)
	return &advice
}

// unexplained returns what to do about waits of a run that the model does not know.
func (c *Curve) unexplained(now float64) (tries []Try) {
	e := c.Run
	total := e.Seconds()
	whole := e.Loader.EpochSamples == 0 // and not a part of an epoch, which starts but once too
	if gap := min(e.Startup, e.First); whole && gap >= large*total && e.Workers > 0 &&
		e.Loader.Settings["persistent_workers"] != true {
		tries = append(tries, Try{"start", "persistent_workers=True", math.NaN(),
			fmt.Sprintf("nothing was loaded in the first %.0f %% of the epoch", 100*gap/total)})
	}
	if e.Batches < 3 || c.Today.Seconds*better <= now {
		return tries
	}
	if other := e.WaitFor.Other - e.FirstFor.Other; other >= large*total {
		tries = append(tries, Try{"batch", "larger batches", math.NaN(),
			fmt.Sprintf("the loop waits %.0f %% of the time for each batch beyond loads and copies", 100*other/total)})
	}
	period, workers := (total-e.First)/float64(e.Batches), max(c.Pace.Workers, 1)
	prefetch, set := e.Loader.Settings["prefetch_factor"].(float64)
	if !set {
		prefetch = 2
	}
	ahead := math.Ceil(e.LongestLoad/period) + 1
	if e.WaitFor.Load-e.FirstFor.Load >= large*total && e.Busy < 0.8 && ahead > prefetch*float64(workers) {
		tries = append(tries, Try{"prefetch", fmt.Sprintf("prefetch_factor=%.0f", math.Ceil(ahead/float64(workers))), math.NaN(),
			fmt.Sprintf("workers are busy %.0f %% only, and the slowest sample takes as long as %.1f batches", 100*e.Busy,
				e.LongestLoad/period)})
	}
	return tries
}

// Waits returns what the training loop of a run waited for, the longest wait first; nil: there is no run. Loads are
// read and decoded as far as that is known.
func (d *Data) Waits() (waits []Limit) {
	if d.Run == nil {
		return nil
	}
	w := d.Run.WaitFor
	read, decode, load := 0.0, 0.0, w.Load
	if share := d.Pace.Source; share != nil {
		read, decode, load = w.Load**share, w.Load*(1-*share), 0
	}
	waits = []Limit{{Name: "read", Seconds: read}, {Name: "decode", Seconds: decode}, {Name: "load", Seconds: load},
		{Name: "augment", Seconds: w.Augment}, {Name: "processor", Seconds: w.Delay}, {Name: "server", Seconds: w.Fetch},
		{Name: "gather", Seconds: w.Gather}, {Name: "batch_augment", Seconds: w.BatchAugment},
		{Name: "transfer", Seconds: w.Transfer}, {Name: "other", Seconds: w.Other}}
	waits = slices.DeleteFunc(waits, func(l Limit) bool { return l.Seconds <= 0 })
	slices.SortStableFunc(waits, func(a, b Limit) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return waits
}

// WaitsText says it in a line.
func (d *Data) WaitsText() string {
	var parts []string
	for _, w := range d.Waits() {
		if share := 100 * w.Seconds / d.Run.Wait; share >= 1 {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", w.Name, share))
		}
	}
	return strings.Join(parts, ", ")
}
