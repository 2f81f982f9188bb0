package timeline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Advice says what would help, with the numbers for it.
type Advice struct {
	Kind string  // one of Advices
	Gain float64 // part of the epoch's time that it would save; 0: it does not save time
	Most bool    // Gain is an upper bound
	Text string
}

// Saves returns the gain as text, to follow Text; "": it does not save time.
func (a Advice) Saves() string {
	switch {
	case a.Gain <= 0:
		return ""
	case a.Most:
		return fmt.Sprintf(" (saves up to %.0f %%)", a.Gain*100)
	}
	return fmt.Sprintf(" (saves %.0f %%)", a.Gain*100)
}

// Kinds of advice, and the subject of each.
var Advices = []struct{ Kind, Help string }{
	{"workers", "more workers: they are busy, and the training loop waits for samples"},
	{"cache", "more samples in the cache: the training loop waits for loads"},
	{"augment", "a cheaper random part: the training loop waits for augment= or batch_augment="},
	{"prefetch", "more batches ahead: workers are not busy, but slow samples stall the training loop"},
	{"server", "a cache that is filled before training: the training loop waits for a server"},
	{"gather", "less to copy: the training loop waits for hits to be copied"},
	{"transfer", "pinned memory: the training loop waits for transfers"},
	{"batch", "larger batches: the overhead of each batch is large"},
	{"start", "persistent workers: they start again in each epoch"},
	{"step", "a faster step: the loader keeps up, so nothing else helps"},
	{"fewer", "fewer workers: they are idle most of the time"},
}

// Thresholds. Shares are of the training loop's time, or of its wait time.
const (
	waits   = 0.05 // the training loop waits; below, the loader keeps up
	mostly  = 0.5  // part of the waiting: the cause of the wait
	busy    = 0.80 // more workers help if these are as busy as this
	batches = 0.10 // overhead of batches; above, larger batches help
	starts  = 0.10 // time until the first load of an epoch
	margin  = 0.8  // the remaining workers are at most this busy
	atMost  = 2    // factor by which workers are increased at once: beyond, the disk or the CPUs may be the limit
)

// Advise says what would help the training loop of an epoch, with the largest gain first. It
// returns nothing for an epoch of fewer than 3 batches, because the first ones are not typical.
func (e *Epoch) Advise() (advice []Advice) {
	if e.Batches < 3 || e.Seconds() <= 0 {
		return nil
	}
	s := e.steady()
	add := func(kind string, gain float64, format string, args ...any) *Advice {
		text := fmt.Sprintf(format, args...)
		advice = append(advice, Advice{Kind: kind, Gain: gain, Text: strings.ToUpper(text[:1]) + text[1:] + "."})
		return &advice[len(advice)-1]
	}
	if gap := min(e.startup, e.First); gap/e.Seconds() >= starts && e.Workers > 0 &&
		e.Loader.Settings["persistent_workers"] != true {
		add("start", gap/e.Seconds(), "nothing was loaded for the first %s (%s of the epoch): "+
			"persistent_workers=True keeps the workers, so that only the first epoch pays for their start",
			duration(gap), percent(gap/e.Seconds()))
	}
	if s.waiting() < waits {
		s.adviseStep(add)
	} else {
		s.adviseSamples(add)
		s.adviseOthers(add)
	}
	slices.SortStableFunc(advice, func(a, b Advice) int { return cmp.Compare(b.Gain, a.Gain) })
	return advice
}

type adder func(kind string, gain float64, format string, args ...any) *Advice

// steady is an epoch without the wait for its first batch, which more workers or cache shorten
// little. Its work is as long as it took on this machine, delays included.
type steady struct {
	*Epoch
	wait    float64
	waitFor Parts
	total   float64
	others  float64 // the least time of the epoch if samples take no time
	workers int     // setting of the loader; 0: it has no workers
}

func (e *Epoch) steady() *steady {
	taken := *e
	taken.Work = e.Work.delayed()
	s := &steady{Epoch: &taken, wait: e.Wait - e.First, waitFor: e.WaitFor.plus(e.firstFor, -1).delayed()}
	s.total = e.Step + s.wait
	for _, l := range e.Limits() {
		s.others = max(s.others, l.Seconds)
	}
	s.workers = e.workers()
	return s
}

// workers is the setting of the loader, or the number of workers that were recorded.
func (e *Epoch) workers() int {
	if n, ok := e.Loader.setting("num_workers"); ok {
		return n
	}
	return e.Workers
}

// Limit is a part of an epoch that takes so long however fast samples are loaded.
type Limit struct {
	Name    string
	Seconds float64
}

// Limits returns the parts that run beside the work on samples, and beside each other.
func (e *Epoch) Limits() []Limit {
	return []Limit{{"the training step", e.Step + e.Work.BatchAugment},
		{"gathering", e.Work.Gather / float64(max(e.gathers, 1))}, {"transfers", e.Work.Transfer},
		{"the server", e.Work.Fetch}}
}

// Pace says how long an epoch takes, and why.
type Pace struct {
	Seconds float64 // without the wait for the first batch, which a cache shortens little
	Workers int     // load samples side by side; 0: the training loop does it itself
	Load    float64 // work of the workers, summed
	Augment float64 // likewise, for hits too
	Limits  []Limit
}

// Pace returns that of the epoch.
func (e *Epoch) Pace() Pace {
	s := e.steady()
	return Pace{s.total, s.workers, e.Work.Load, e.Work.Augment, e.Limits()}
}

func (s *steady) waiting() float64 {
	if s.total <= 0 {
		return 0
	}
	return s.wait / s.total
}

// adviseStep is for an epoch whose loader keeps up.
func (s *steady) adviseStep(add adder) {
	limit := max(s.Work.samples()/float64(max(s.workers, 1)), s.Work.BatchAugment,
		s.Work.Gather/float64(max(s.gathers, 1)), s.Work.Transfer, s.Work.Fetch)
	if limit > 0 && s.Step > limit {
		add("step", 0, "the training loop waits %s: the loader keeps up, and the step is the limit. Only a faster "+
			"step helps, up to %s times; then the loader is the limit, at %s samples/s",
			percent(s.waiting()), factor(s.Step/limit), thousands(float64(s.Samples)/limit))
	}
	if need := int(math.Ceil(s.Work.samples() / (margin * s.total))); s.workers > max(need, 1) && s.Work.samples() > 0 {
		add("fewer", 0, "workers are busy %s: %d of the %d would do, and leave CPUs to the step", percent(s.Busy),
			max(need, 1), s.workers)
	}
}

// adviseSamples is for an epoch that waits for work on single samples.
func (s *steady) adviseSamples(add adder) {
	if s.waitFor.samples() < mostly*s.wait || s.Work.samples() <= 0 {
		return
	}
	if s.workers == 0 || s.Busy >= busy {
		s.adviseWorkers(add)
	} else {
		s.adviseAhead(add)
	}
	s.adviseAugment(add)
	s.adviseCache(add)
}

// adviseWorkers assumes that augment= computes, so it counts at most one worker per processor for
// that. Loads may wait for a disk or the network, which needs no processor.
func (s *steady) adviseWorkers(add adder) {
	work, least := s.Work.samples(), s.others
	if s.Loader.CPUs > 0 {
		least = max(least, s.Work.Augment/float64(s.Loader.CPUs))
	}
	// at most atMost times as many
	need := int(math.Ceil(work / max(least, work/float64(max(atMost*s.workers, 2)))))
	need = max(need, s.workers+1)
	after := max(work/float64(need), least)
	gain := 1 - after/s.total
	if gain <= 0.02 {
		return
	}
	now := fmt.Sprintf("workers are busy %s and the training loop waits %s", percent(s.Busy), percent(s.waiting()))
	if s.workers == 0 {
		now = fmt.Sprintf("samples are loaded by no worker and the training loop waits %s", percent(s.waiting()))
	}
	effect := fmt.Sprintf("would cut waiting to %s", percent(1-s.others/after))
	if after <= s.others*1.001 {
		effect = "would hide loading"
	}
	cpus := ""
	if need > s.Loader.CPUs && s.Loader.CPUs > 0 {
		cpus = fmt.Sprintf("; there are %d CPUs, so this holds as far as loads wait for disk or network", s.Loader.CPUs)
	}
	add("workers", gain, "%s: %d more (num_workers=%d) %s%s", now, need-s.workers, need, effect, cpus).Most = cpus != ""
}

// adviseAugment is for an epoch that waits longer for the random part of samples than for loads.
func (s *steady) adviseAugment(add adder) {
	if s.waitFor.Augment < s.waitFor.Load || s.Samples == 0 {
		return
	}
	after := max(s.Work.Load/float64(max(s.workers, 1)), s.others)
	if s.workers == 0 {
		after = s.total - s.Work.Augment
	}
	if gain := 1 - after/s.total; gain > 0.02 {
		rest := ""
		if s.Hits > 0 {
			rest = "; what is not random about it belongs in the dataset, whose samples are cached"
		}
		add("augment", gain, "the training loop waits %s for augment=, which takes %s a sample: make it cheaper, "+
			"or do it for whole batches (batch_augment=), on the device if it has time%s",
			percent(s.waitFor.Augment/s.total), duration(s.Work.Augment/float64(s.Samples)), rest).Most = true
	}
}

// adviseAhead is for workers that have time while the training loop still waits for them.
func (s *steady) adviseAhead(add adder) {
	period := s.total / float64(s.Batches)
	ahead := int(math.Ceil(s.LongestLoad/period)) + 1
	now, known := s.Loader.setting("prefetch_factor")
	if !known {
		now = 2
	}
	if ahead <= now*max(s.workers, 1) {
		return
	}
	factor := (ahead + s.workers - 1) / max(s.workers, 1)
	add("prefetch", s.waitFor.Load/s.total, "workers are busy %s only, but the training loop waits %s for single "+
		"slow samples: the slowest takes %s, as long as %.1f batches; prefetch_factor=%d, now %d, would "+
		"load it in time",
		percent(s.Busy), percent(s.waiting()), duration(s.LongestLoad), s.LongestLoad/period, factor, now)
}

func (s *steady) adviseCache(add adder) {
	if s.Misses == 0 || s.Samples == 0 || s.Work.Load <= 0 {
		return
	}
	have := float64(s.Hits) / float64(s.Hits+s.Misses)
	workers := float64(max(s.workers, 1))
	// workers have enough time: the amount of loading is not the cause of the wait
	if s.workers > 0 && s.Work.samples()/workers <= s.others {
		return
	}
	// loading time if all samples were misses
	all := s.Work.Load / (1 - have)
	want := math.Ceil(100*(all+s.Work.Augment-s.others*workers)/all) / 100 // hits need the random part too
	fate := "be hidden"
	if s.workers == 0 { // no worker loads beside the step, so loading cannot be hidden
		want = 1
	}
	if want = min(want, 1); want == 1 {
		fate = "be gone"
	}
	if want <= have+0.005 {
		return
	}
	left := all * (1 - want)
	gain := (s.Work.samples()/workers - max((left+s.Work.Augment)/workers, s.others)) / s.total
	if s.workers == 0 {
		gain = (s.Work.Load - left) / s.total
	}
	if gain = min(gain, 1); gain <= 0.02 {
		return
	}
	given := func(name string) bool { return s.Loader.Settings[name] != nil }
	unsized := !given("cache") && !given("size")
	how, beside := "a larger size= ", ""
	if s.Work.Augment > 0 {
		beside = fmt.Sprintf(" (beside %s of augment=)", duration(s.Work.Augment))
	}
	switch {
	case s.Hits == 0 && unsized && !given("name"):
		how = "size= or cache= "
	case s.Hits == 0 || unsized &&
		given("name"): // being filled: no number here says what it will hold; with a name alone, everything
		filled := "every sample was loaded, as in an epoch that fills a cache"
		if s.Hits > 0 {
			filled = fmt.Sprintf("%s of the samples were loaded, as in an epoch that fills a cache", percent(1-have))
		}
		add("cache", gain, "%s: at a hit rate of %.2f loading would take %s instead of %s%s and %s; see if the "+
			"next epoch's hit rate gets there",
			filled, want, duration(left), duration(s.Work.Load), beside, fate)
		return
	}
	room := ""
	if s.Bytes > 0 && !given("augment") { // augment= may change their size
		room = fmt.Sprintf(" (%s)", size(float64(s.Bytes)*float64(max(s.Loader.WorldSize, 1))*want))
	}
	add("cache", gain, "at a hit rate of %.2f, now %.2f, loading would take %s instead of %s%s and %s: %sfor %s of "+
		"the dataset%s",
		want, have, duration(left), duration(s.Work.Load), beside, fate, how, percent(want), room)
}

// adviseOthers is for an epoch that waits for something else than samples.
func (s *steady) adviseOthers(add adder) {
	if s.waitFor.BatchAugment >= mostly*s.wait {
		add("augment", s.waitFor.BatchAugment/s.total, "the training loop waits %s for batch_augment=, which it "+
			"runs itself: do it on the device, or sample by sample in augment=, which workers run",
			percent(s.waitFor.BatchAugment/s.total)).Most = true
	}
	if s.waitFor.Fetch >= mostly*s.wait {
		add("server", s.waitFor.Fetch/s.total, "the training loop waits %s for a server that fills the cache: "+
			"stocached warm fills it before the training begins", percent(s.waitFor.Fetch/s.total))
	}
	if s.waitFor.Gather >= mostly*s.wait {
		speed := ""
		if s.Bytes > 0 && s.Work.Gather > 0 {
			speed = fmt.Sprintf(" (%s/s)", size(float64(s.Bytes)/s.Work.Gather))
		}
		add("gather", s.waitFor.Gather/s.total, "the training loop waits %s for hits to be copied, which takes %s "+
			"of %s%s: samples of fewer bytes (uint8 rather than float32), or more threads that copy, as far as "+
			"memory bandwidth goes",
			percent(s.waitFor.Gather/s.total), duration(s.Work.Gather), duration(s.Seconds()), speed)
	}
	if s.waitFor.Transfer >= mostly*s.wait {
		how := "overlap it with the step (non_blocking=True)"
		if s.Loader.Settings["pin_memory"] != true {
			how = "pin_memory=True, and non_blocking=True where batches are moved"
		}
		add("transfer", s.waitFor.Transfer/s.total, "the training loop waits %s for transfers: %s",
			percent(s.waitFor.Transfer/s.total), how)
	}
	if share := s.waitFor.Other / s.total; share >= batches {
		each := s.waitFor.Other / float64(s.Batches)
		count := int(math.Round(float64(s.Samples) / float64(s.Batches)))
		add("batch", share*3/4, "the training loop waits %s for each batch beyond loads and copies, %s of the "+
			"time: batches of %d, now %d, would save three quarters of that at least", duration(each), percent(share),
			4*count, count)
	}
}

func percent(share float64) string {
	switch p := share * 100; {
	case p >= 9.95:
		return fmt.Sprintf("%.0f %%", p)
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}

func factor(f float64) string {
	if f >= 10 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

func duration(s float64) string {
	unit := "s"
	switch {
	case s == 0:
	case s < 1e-3:
		s, unit = s*1e6, "us"
	case s < 1:
		s, unit = s*1e3, "ms"
	}
	digits := 2
	if s >= 100 {
		digits = 0
	} else if s >= 10 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, s, unit)
}

func size(bytes float64) string {
	unit := 0
	for ; bytes >= 1000 && unit < 4; unit++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%.3g %s", bytes, [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

func thousands(n float64) string {
	s := fmt.Sprintf("%.0f", n)
	var b strings.Builder
	for k, digit := range s {
		if k > 0 && (len(s)-k)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}
