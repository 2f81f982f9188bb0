package timeline

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// job is a training that run simulates, so that a test can follow an advice and check its effect.
// Times are ms.
type job struct {
	workers, batches, size  int
	ahead                   int                 // batches in work before the one that the loop has
	misses                  int                 // of each batch
	load                    float64             // of a sample
	augment                 float64             // the random part of a sample; 0: none
	batchAugment            float64             // of a batch, by the loop
	slow                    map[int]float64     // load of the samples of these numbers
	gather, transfer, fetch float64             // of a batch
	overhead                float64             // of a batch, not recorded
	startup                 float64             // before workers begin
	step                    float64             // of a batch
	settings                map[string]any      // beside num_workers
	cpus                    int                 //
	bytes                   int64               // of a sample; 0: unknown
	alter                   func(k int) float64 // factor of the load of batch k; nil: 1
}

func (j job) run() *Trace {
	m := newMade(map[string]any{"num_workers": float64(j.workers)})
	for name, value := range j.settings {
		m.Settings[name] = value
	}
	if j.cpus > 0 {
		m.CPUs = j.cpus
	}
	free := make([]float64, max(j.workers, 1)) // when each worker is free
	for k := range free {
		free[k] = j.startup
	}
	at := func(t float64) int64 { return int64(t * ms) }
	ready := make([]float64, j.batches)
	taken := make([]float64, j.batches) // when the loop got each batch
	gatherFree, sample, now := 0.0, 0, 0.0
	prepare := func(k int, posted float64) {
		done := posted
		work := j.misses
		if j.augment > 0 {
			work = j.size
		}
		for i := range work {
			length, slow := j.slow[sample]
			if !slow {
				length = j.load
				if j.alter != nil {
					length *= j.alter(k)
				}
			}
			if i >= j.misses {
				length = 0
			}
			w := 0
			for other := range free {
				if free[other] < free[w] {
					w = other
				}
			}
			start := max(posted, free[w])
			free[w] = start + length
			if length > 0 {
				m.load(w, 0, k, sample, at(start), at(free[w]))
			}
			if j.augment > 0 {
				m.stage(Augment, firstWorker+w, 0, k, at(free[w]), at(free[w]+j.augment))
				free[w] += j.augment
			}
			done = max(done, free[w])
			sample++
		}
		if j.fetch > 0 {
			m.stage(Fetch, serverTrack, 0, k, at(max(posted, gatherFree)), at(max(posted, gatherFree)+j.fetch))
			gatherFree = max(posted, gatherFree) + j.fetch
		}
		if j.gather > 0 {
			start := max(posted, gatherFree)
			gatherFree = start + j.gather
			m.stage(Gather, gatherTrack, 0, k, at(start), at(gatherFree))
		}
		done = max(done, gatherFree)
		if j.transfer > 0 {
			m.stage(Transfer, transferTrack, 0, k, at(done), at(done+j.transfer))
			done += j.transfer
		}
		ready[k] = done + j.overhead
	}
	next := 0
	for k := range j.batches {
		for ; next < j.batches && next <= k+j.ahead; next++ {
			posted := 0.0
			if before := next - j.ahead - 1; before >= 0 {
				posted = taken[before]
			}
			if j.overhead > 0 && next > 0 {
				posted = max(posted, ready[next-1])
			}
			prepare(next, posted)
		}
		start := now
		now = max(now, ready[k])
		if j.batchAugment > 0 {
			m.stage(BatchAugment, loopTrack, 0, k, at(now), at(now+j.batchAugment))
			now += j.batchAugment
		}
		taken[k] = now
		m.loop(Wait, 0, k, at(start), at(now), j.size, j.size-j.misses)
		if j.bytes > 0 {
			loop := m.Tracks[slices.IndexFunc(m.Tracks, func(t *Track) bool { return t.Number == loopTrack })]
			loop.Spans[len(loop.Spans)-1].Bytes = j.bytes * int64(j.size)
		}
		m.loop(Step, 0, k, at(now), at(now+j.step), 0, 0)
		now += j.step
	}
	return m.trace()
}

func (j job) epoch() *Epoch { return j.run().Epochs()[0] }

func (j job) advice(kind string) *Advice {
	for _, a := range j.epoch().Advise() {
		if a.Kind == kind {
			return &a
		}
	}
	return nil
}

// keepsUp is a job that only a faster step helps. The other jobs change what their names say.
func keepsUp() job {
	return job{workers: 4, batches: 40, size: 16, ahead: 4, misses: 16, load: 1.9, step: 20}
}

func fewWorkers() job {
	j := keepsUp()
	j.workers = 1
	return j
}

func partlyCached() job {
	j := keepsUp()
	j.workers, j.misses, j.load = 2, 12, 8
	j.settings, j.bytes = map[string]any{"size": "1GiB"}, 1<<20
	return j
}

func slowSamples() job {
	j := keepsUp()
	j.misses, j.ahead, j.slow = 8, 1, map[int]float64{}
	for k := 40; k < 320; k += 40 {
		j.slow[k] = 75
	}
	j.settings = map[string]any{"prefetch_factor": 1.0}
	j.workers, j.load = 2, 1
	return j
}

func slowGathers() job {
	j := keepsUp()
	j.misses, j.gather, j.step, j.bytes = 0, 10, 4, 1<<20
	return j
}

func slowTransfers() job {
	j := keepsUp()
	j.misses, j.gather, j.transfer, j.step, j.ahead = 0, 1, 12, 6, 0
	return j
}

func slowServer() job {
	j := keepsUp()
	j.misses, j.fetch, j.step = 0, 30, 10
	return j
}

func smallBatches() job {
	j := keepsUp()
	j.batches, j.size, j.misses, j.gather, j.overhead, j.step, j.ahead = 200, 4, 0, 0.05, 1, 0.5, 0
	return j
}

func slowStart() job {
	j := keepsUp()
	j.startup = 400
	return j
}

func idleWorkers() job {
	j := keepsUp()
	j.misses = 1
	return j
}

// slowAugments is a job whose samples are all hits, with as many processors as workers.
func slowAugments() job {
	j := keepsUp()
	j.workers, j.cpus, j.misses, j.augment, j.step = 2, 2, 0, 4, 5
	j.settings = map[string]any{"size": "1GiB", "augment": "flip"}
	return j
}

func slowBatchAugments() job {
	j := keepsUp()
	j.batchAugment, j.step = 30, 10
	return j
}

// Ensure that each advice is given to the right jobs, with its numbers, and not to jobs that it
// would not help.
func TestAdvice(t *testing.T) {
	jobs := map[string]job{
		"keeps up": keepsUp(), "few workers": fewWorkers(), "partly cached": partlyCached(),
		"slow samples": slowSamples(), "slow gathers": slowGathers(),
		"slow transfers": slowTransfers(), "slow server": slowServer(), "small batches": smallBatches(),
		"slow start": slowStart(), "idle workers": idleWorkers(),
		"slow augments": slowAugments(), "slow batch augments": slowBatchAugments(),
	}
	for _, c := range []struct {
		kind  string
		right map[string][]string // jobs that get it, and its text
	}{
		{"workers", map[string][]string{"few workers": {"Workers are busy 98 % and the training loop waits 34 %: 1 " +
			"more (num_workers=2) would hide loading"},
			"partly cached": {"2 more (num_workers=4) would cut waiting to 17 %"}}},
		{"cache", map[string][]string{"few workers": {"At a hit rate of 0.35, now 0.00, loading would take 790 ms " +
			"instead of 1.22 s", "size= or cache= for 35 % of the dataset"},
			"partly cached": {"At a hit rate of 0.69, now 0.25, loading would take 1.59 s instead of 3.84 s",
				"a larger size= for 69 % of the dataset (442 MiB)"}}},
		{"augment", map[string][]string{"slow augments": {"The training loop waits 84 % for augment=, which takes " +
			"4.00 ms a sample: make it cheaper", "; what is not random about it belongs in the dataset"},
			"slow batch augments": {"waits 75 % for batch_augment=, which it runs itself"}}},
		{"prefetch", map[string][]string{"slow samples": {"the slowest takes 75.0 ms, as long as 2.9 batches",
			"prefetch_factor=2, now 1"}}},
		{"server", map[string][]string{"slow server": {"waits 66 % for a server", "stocached warm"}}},
		{"gather", map[string][]string{"slow gathers": {"waits 59 % for hits to be copied, which takes 400 ms of " +
			"404 ms (1.56 GiB/s)"}}},
		{"transfer", map[string][]string{"slow transfers": {"waits 53 % for transfers: pin_memory=True"}}},
		{"batch", map[string][]string{"small batches": {"waits 547 us for each batch beyond loads and copies, 52 % " +
			"of the time: batches of 16, now 4"}}},
		{"start", map[string][]string{"slow start": {"Nothing was loaded for the first 400 ms (33 % of the epoch): " +
			"persistent_workers=True"}}},
		{"step", map[string][]string{"keeps up": {"waits 0.0 %: the loader keeps up",
			"up to 2.6 times; then the loader is the limit, at 2,105 samples/s"}, "idle workers": {"up to 42 times"},
			"slow start": {"keeps up"}}},
		{"fewer", map[string][]string{"idle workers": {"Workers are busy 2.4 %: 1 of the 4 would do"},
			"keeps up": {"Workers are busy 38 %: 2 of the 4 would do"}, "slow start": {"2 of the 4"}}},
	} {
		for name, j := range jobs {
			a := j.advice(c.kind)
			texts, right := c.right[name]
			switch {
			case right && a == nil:
				t.Errorf("%s: no advice about %s, but %+v", name, c.kind, j.epoch().Advise())
			case !right && a != nil:
				t.Errorf("%s: advice about %s: %s", name, c.kind, a.Text)
			case right:
				for _, text := range texts {
					if !strings.Contains(a.Text, text) {
						t.Errorf("%s, %s: %q is not in: %s", name, c.kind, text, a.Text)
					}
				}
			}
		}
	}
	for _, a := range Advices {
		if len(a.Kind) > 8 || a.Help == "" {
			t.Errorf("%+v does not fit the help text", a)
		}
	}
}

// number returns the number in the group of a pattern.
func number(t *testing.T, text, pattern string) float64 {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if match == nil {
		t.Fatalf("no %s in: %s", pattern, text)
	}
	n, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Ensure that an advice has the promised effect: the same job with more workers, a fuller cache, or
// more batches ahead takes as long as the advice says.
func TestAdviceHolds(t *testing.T) {
	check := func(name string, before, after job, gain float64) {
		t.Helper()
		a, b := before.epoch().steady(), after.epoch().steady()
		if got := 1 - b.total/a.total; got < gain-0.04 || got > gain+0.04 {
			t.Errorf("%s: it promised to save %.3f, and saves %.3f", name, gain, got)
		}
	}
	for _, load := range []float64{1.5, 2.5, 4, 7} {
		for _, workers := range []int{1, 2, 3} {
			j := keepsUp()
			j.workers, j.load = workers, load
			if a := j.advice("workers"); a != nil {
				more := j
				more.workers = int(number(t, a.Text, `num_workers=(\d+)`))
				check("workers", j, more, a.Gain)
				if strings.Contains(a.Text, "hide") {
					if waiting := more.epoch().steady().waiting(); waiting > waits {
						t.Errorf("%d workers, %v ms a sample: hidden, but the loop waits %.3f: %s", workers, load,
							waiting, a.Text)
					}
				}
			} else if j.epoch().steady().waiting() > waits {
				t.Errorf("%d workers, %v ms a sample: the loop waits, and no advice", workers, load)
			}
			if a := j.advice("cache"); a != nil {
				fuller := j
				want := number(t, a.Text, `hit rate of ([\d.]+)`)
				fuller.misses = int(float64(j.size) * (1 - want)) // rounded down to the next possible number
				waiting := fuller.epoch().steady().waiting()
				if waiting > waits {
					t.Errorf("%d workers, %v ms a sample: at %v it should be hidden, and waits %.3f", workers, load,
						want, waiting)
				}
			}
		}
	}
	j := slowSamples()
	a := j.advice("prefetch")
	ahead := j
	ahead.ahead = int(number(t, a.Text, `prefetch_factor=(\d+)`)) * j.workers
	if before, after := j.epoch().steady().waiting(), ahead.epoch().steady().waiting(); after > before/2 {
		t.Errorf("%d batches ahead: it waits %.3f, before %.3f", ahead.ahead, after, before)
	}
	large := smallBatches()
	a = large.advice("batch")
	large.batches, large.size, large.gather, large.step = large.batches/4, 4*large.size, 4*large.gather, 4*large.step
	if got := 1 - large.epoch().steady().total/smallBatches().epoch().steady().total; got < a.Gain-0.04 {
		t.Errorf("larger batches: it promised to save %.3f at least, and saves %.3f", a.Gain, got)
	}
}

// augments is a job whose samples have a random part, which takes 3 of the 8 ms of a miss.
func augments() job {
	j := keepsUp()
	j.workers, j.misses, j.load, j.augment, j.step, j.bytes = 2, 4, 5, 3, 5, 1<<20
	j.settings = map[string]any{"size": "1GiB", "augment": "flip"}
	return j
}

// Ensure that an advice fits the settings of the loader, and that too few batches get none.
func TestAdviceFits(t *testing.T) {
	j := fewWorkers()
	j.cpus = 1
	if a := j.advice("workers"); !strings.Contains(a.Text,
		"there are 1 CPUs, so this holds as far as loads wait for disk or network") {
		t.Errorf("of one CPU: %s", a.Text)
	}
	j = fewWorkers()
	j.workers = 0
	if a := j.advice("workers"); a == nil || !strings.Contains(a.Text, "loaded by no worker") ||
		!strings.Contains(a.Text, "num_workers=2") {
		t.Errorf("without workers: %+v", a)
	}
	if a := j.advice("cache"); a == nil ||
		!strings.Contains(a.Text,
			"At a hit rate of 1.00, now 0.00, loading would take 0.00 s instead of 1.22 s and be gone") {
		t.Errorf("without workers nothing is hidden: %+v", a)
	}
	j = fewWorkers()
	j.settings = map[string]any{"size": "8GiB"} // set, but without hits: this epoch fills it
	if a := j.advice("cache"); a == nil || !strings.Contains(a.Text, "see if the next epoch's hit rate gets there") {
		t.Errorf("an epoch that fills the cache: %+v", a)
	}
	for misses, says := range map[int]string{16: "Every sample was loaded, as in an epoch that fills a cache",
		4: "25 % of the samples were loaded, as in"} {
		j = fewWorkers()
		j.misses, j.load, j.settings = misses, 8, map[string]any{"name": "faces"} // every sample fits
		if a := j.advice("cache"); a == nil || !strings.HasPrefix(a.Text, says) || strings.Contains(a.Text, "size=") {
			t.Errorf("%d misses of a cache with room for all: %+v", misses, a)
		}
	}

	// More samples in the cache do not reduce the random part.
	j = augments()
	a := j.advice("cache")
	if a == nil || !strings.Contains(a.Text, "At a hit rate of 1.00, now 0.75, loading would take 0.00 s instead "+
		"of 800 ms (beside 1.92 s of augment=) and be gone: a larger size= for 100 % of the dataset.") {
		t.Fatalf("with a random part: %+v", a)
	}
	full := augments()
	full.misses = 0
	if took := full.epoch().Work; took.Load != 0 || took.Augment < 1.919 || took.Augment > 1.921 {
		t.Errorf("with a random part alone: %+v; the advice was: %s", took, a.Text)
	}
	j.step = 30
	if a := j.advice("cache"); a == nil || !strings.Contains(a.Text, "At a hit rate of 0.85, now 0.75, loading "+
		"would take 480 ms instead of 800 ms (beside 1.92 s of augment=) and be hidden") {
		t.Errorf("with a random part that the step hides: %+v", a)
	}
	j.load = 0
	if a := j.advice("cache"); a != nil {
		t.Errorf("loads take no time: %+v", a)
	}

	// The random part computes: more workers than processors do not help it.
	j = slowAugments()
	e := j.epoch()
	if e.WaitFor.Load != 0 || e.WaitFor.Augment < 0.9*e.Wait {
		t.Errorf("of %v s it waits %+v", e.Wait, e.WaitFor)
	}
	if advice := e.Advise(); len(advice) != 1 || advice[0].Kind != "augment" || !advice[0].Most {
		t.Errorf("with 2 workers on 2 CPUs: %+v", advice)
	}
	j.cpus = 3
	if a := j.advice("workers"); a == nil ||
		!strings.Contains(a.Text, "1 more (num_workers=3) would cut waiting to") ||
		strings.Contains(a.Text, "CPUs") || a.Most {
		t.Errorf("with 2 workers on 3 CPUs: %+v", a)
	}
	j.cpus = 16
	if a := j.advice("workers"); a == nil || !strings.Contains(a.Text, "2 more (num_workers=4)") {
		t.Errorf("with 2 workers on 16 CPUs: %+v", a)
	}
	// half of the work are loads, which may wait: twice as many workers as processors
	j.cpus, j.misses, j.load, j.size = 2, 8, 4, 8
	if a := j.advice("workers"); a == nil || !strings.Contains(a.Text, "2 more (num_workers=4)") ||
		!strings.Contains(a.Text, "there are 2 CPUs, so this holds as far as loads wait") || !a.Most {
		t.Errorf("with as much to load: %+v", a)
	}
	if a := j.advice("augment"); a == nil {
		t.Errorf("with as much to load: %+v", j.epoch().Advise())
	}
	j.load = 8
	if a := j.advice("augment"); a != nil {
		t.Errorf("with more to load: %+v", a)
	}
	j = slowTransfers()
	j.settings = map[string]any{"pin_memory": true}
	if a := j.advice("transfer"); a == nil || strings.Contains(a.Text, "pin_memory") ||
		!strings.Contains(a.Text, "non_blocking") {
		t.Errorf("pinned already: %+v", a)
	}
	j = slowStart()
	j.settings = map[string]any{"persistent_workers": true}
	if a := j.advice("start"); a != nil {
		t.Errorf("persistent already: %+v", a)
	}
	j = slowSamples()
	j.settings = map[string]any{"prefetch_factor": 8.0}
	if a := j.advice("prefetch"); a != nil {
		t.Errorf("enough ahead already: %+v", a)
	}
	j = slowSamples() // workers have time, and 16 of 21 are hits: one more hit would change nothing
	j.size, j.misses = 21, 5
	for k := 40; k < 320; k += 40 {
		j.slow[k+1] = 75
	}
	if a := j.advice("cache"); a != nil || j.epoch().steady().waiting() < waits {
		t.Errorf("waits %v for slow samples: %+v", j.epoch().steady().waiting(), a)
	}
	j = fewWorkers()
	j.batches = 2
	if a := j.epoch().Advise(); a != nil {
		t.Errorf("two batches: %+v", a)
	}
	advice := partlyCached().epoch().Advise()
	if len(advice) != 2 || advice[0].Gain < advice[1].Gain {
		t.Errorf("what saves most comes first: %+v", advice)
	}
}

// Ensure that numbers are formatted for people.
func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		percent(0): "0.0 %", percent(0.0949): "9.5 %", percent(0.0996): "10 %", percent(0.5): "50 %",
		duration(0): "0.00 s", duration(1.5e-6): "1.50 us", duration(0.0123): "12.3 ms", duration(2): "2.00 s",
		duration(345.6): "346 s", size(999): "999 B", size(1023): "0.999 KiB", size(1 << 20): "1 MiB",
		size(5e13): "45.5 TiB", thousands(0): "0", thousands(999): "999", thousands(1234567): "1,234,567",
		factor(2.54): "2.5", factor(12.3): "12",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
