package advise

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/internal/verify/fatal"
)

const ms = 1e6

// made is a loader whose spans a test adds.
type made struct{ *timeline.Loader }

func (m made) add(number int, s timeline.Span) {
	at := slices.IndexFunc(m.Tracks, func(t *timeline.Track) bool { return t.Number == number })
	if at < 0 {
		at, m.Tracks = len(m.Tracks), append(m.Tracks, &timeline.Track{Number: number})
	}
	m.Tracks[at].Spans = append(m.Tracks[at].Spans, s)
}

func (m made) loop(kind timeline.Kind, epoch, batch int, from, to int64, samples, hits int) {
	s := timeline.Span{Kind: kind, Start: from, End: to, Epoch: int32(epoch), Batch: int32(batch), Index: -1, Samples: -1}
	if kind == timeline.Wait {
		s.Samples, s.Hits, s.Misses, s.Bytes = int32(samples), int32(hits), int32(samples-hits), int64(samples)<<20
	}
	m.add(1, s)
}

func (m made) load(worker, epoch, batch, index int, from, to int64) {
	m.add(10+worker, timeline.Span{Kind: timeline.Load, Start: from, End: to, Epoch: int32(epoch), Batch: int32(batch),
		Index: int64(index)})
}

func (m made) stage(kind timeline.Kind, number, epoch, batch int, from, to int64) {
	m.add(number, timeline.Span{Kind: kind, Start: from, End: to, Epoch: int32(epoch), Batch: int32(batch), Index: -1})
}

// job is a training that run simulates, so that a test can follow an advice and check its effect.
// Times are ms.
type job struct {
	workers, batches, size  int
	ahead                   int                 // batches in work before the one that the loop has
	misses                  int                 // misses of each batch
	load                    float64             // the time of a sample
	augment                 float64             // the random part of a sample; 0: none
	batchAugment            float64             // the loop's time for a batch
	slow                    map[int]float64     // load of the samples of these numbers
	gather, transfer, fetch float64             // times of a batch
	overhead                float64             // time of a batch, not recorded
	startup                 float64             // before workers begin
	step                    float64             // time of a batch
	settings                map[string]any      // beside num_workers
	cpus                    int                 //
	alter                   func(k int) float64 // factor of the load of batch k; nil: 1
}

func (j job) run() *timeline.Trace {
	m := made{&timeline.Loader{PID: 1, WorldSize: 1, CPUs: 64, Settings: map[string]any{"num_workers": float64(j.workers)}}}
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
				m.stage(timeline.Augment, 10+w, 0, k, at(free[w]), at(free[w]+j.augment))
				free[w] += j.augment
			}
			done = max(done, free[w])
			sample++
		}
		if j.fetch > 0 {
			m.stage(timeline.Fetch, 8, 0, k, at(max(posted, gatherFree)), at(max(posted, gatherFree)+j.fetch))
			gatherFree = max(posted, gatherFree) + j.fetch
		}
		if j.gather > 0 {
			start := max(posted, gatherFree)
			gatherFree = start + j.gather
			m.stage(timeline.Gather, 3, 0, k, at(start), at(gatherFree))
		}
		done = max(done, gatherFree)
		if j.transfer > 0 {
			m.stage(timeline.Transfer, 2, 0, k, at(done), at(done+j.transfer))
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
			m.stage(timeline.BatchAugment, 1, 0, k, at(now), at(now+j.batchAugment))
			now += j.batchAugment
		}
		taken[k] = now
		m.loop(timeline.Wait, 0, k, at(start), at(now), j.size, j.size-j.misses)
		m.loop(timeline.Step, 0, k, at(now), at(now+j.step), 0, 0)
		now += j.step
	}
	return &timeline.Trace{Loaders: []*timeline.Loader{m.Loader}}
}

// jobs are jobs by their names, each the change of a job that only a faster step helps.
var jobs = map[string]func(j *job){
	"keeps up":            func(*job) {},
	"few workers":         func(j *job) { j.workers = 1 },
	"slow start":          func(j *job) { j.startup = 400 },
	"idle workers":        func(j *job) { j.misses = 1 },
	"slow gathers":        func(j *job) { j.misses, j.gather, j.step = 0, 10, 4 },
	"slow transfers":      func(j *job) { j.misses, j.gather, j.transfer, j.step, j.ahead = 0, 1, 12, 6, 0 },
	"slow server":         func(j *job) { j.misses, j.fetch, j.step = 0, 30, 10 },
	"slow batch augments": func(j *job) { j.batchAugment, j.step = 30, 10 },
	"partly cached": func(j *job) {
		j.workers, j.misses, j.load = 2, 12, 8
		j.settings = map[string]any{"size": "1GiB"}
	},
	"slow samples": func(j *job) {
		j.workers, j.load, j.misses, j.ahead, j.slow = 2, 1, 8, 1, map[int]float64{}
		for k := 40; k < 320; k += 40 {
			j.slow[k] = 75
		}
		j.settings = map[string]any{"prefetch_factor": 1.0}
	},
	"small batches": func(j *job) {
		j.batches, j.size, j.misses, j.gather, j.overhead, j.step, j.ahead = 200, 4, 0, 0.05, 1, 0.5, 0
	},
	"slow augments": func(j *job) { // its samples are all hits, and it has as many processors as workers
		j.workers, j.cpus, j.misses, j.augment, j.step = 2, 2, 0, 4, 5
		j.settings = map[string]any{"size": "1GiB", "augment": "flip"}
	},
}

func jobOf(name string) job {
	j := job{workers: 4, batches: 40, size: 16, ahead: 4, misses: 16, load: 1.9, step: 20}
	jobs[name](&j)
	return j
}

// curve is that of a job. A job without misses needs costs, which its cache has.
func (j job) curve(t *testing.T) *Curve {
	t.Helper()
	recorded := j.run()
	d, err := Run("job", recorded, 1<<20)
	if err != nil {
		d = &Data{Name: "cache", Samples: j.batches * j.size, SampleBytes: 1 << 20, Today: Today{Part: 1}}
		for range d.Samples {
			d.Seconds = append(d.Seconds, j.load/1000)
		}
		fatal.If(t, d.Lend("job", recorded))
	}
	c := fatal.Value(New(d, 1))(t)
	return c
}

// try returns what is tried of a kind; nil: nothing.
func try(c *Curve, kind string, memory uint64) *Try {
	for _, t := range c.Tries(memory) {
		if t.Kind == kind {
			return &t
		}
	}
	return nil
}

// Ensure that each kind of try is for the right jobs, and not for jobs that it would not help.
func TestTries(t *testing.T) {
	for _, k := range Kinds {
		if len(k.Kind) > 8 || k.Help == "" {
			t.Errorf("%+v does not fit the help text", k)
		}
	}
	curves := map[string]*Curve{}
	for name := range jobs {
		curves[name] = jobOf(name).curve(t)
	}
	for kind, right := range map[string]map[string]string{
		"workers": {"few workers": "num_workers=2", "partly cached": "num_workers=5", "keeps up": "num_workers=2",
			"slow gathers": "num_workers=1", "slow transfers": "num_workers=1",
			"slow server": "num_workers=1", "small batches": "num_workers=1", "slow start": "num_workers=2",
			"idle workers": "num_workers=1", "slow batch augments": "num_workers=1"},
		"cache":    {"few workers": `size="`, "partly cached": `size="`},
		"augment":  {"slow augments": "a cheaper augment=", "slow batch augments": "a cheaper batch_augment="},
		"prefetch": {"slow samples": "prefetch_factor=2"},
		"server":   {"slow server": "stocached warm"},
		"gather":   {"slow gathers": "samples of fewer bytes"},
		"transfer": {"slow transfers": "pin_memory=True"},
		"batch":    {"small batches": "larger batches"},
		"start":    {"slow start": "persistent_workers=True"},
	} {
		for name, c := range curves {
			found, want := try(c, kind, 0), right[name]
			switch {
			case want != "" && found == nil:
				t.Errorf("%s: nothing about %s, but %+v", name, kind, c.Tries(0))
			case want == "" && found != nil:
				t.Errorf("%s: about %s: %+v", name, kind, found)
			case want != "" && !strings.Contains(found.Setting, want):
				t.Errorf("%s, %s: %q is not in: %s", name, kind, want, found.Setting)
			}
		}
	}
	if all := curves["slow start"].Tries(0); all[len(all)-1].Kind != "start" {
		t.Errorf("what has no seconds is not the last: %+v", all)
	}
	if said := try(curves["keeps up"], "step", 0); said == nil {
		t.Error("a loader that keeps up")
	}
}

// Ensure that a try has the promised effect: the same job with these workers, or a fuller cache, takes as long as it says.
func TestTriesHold(t *testing.T) {
	check := func(name string, after job, promised float64) {
		t.Helper()
		if got := after.curve(t).Today.Seconds; !(math.Abs(got/promised-1) < 0.1) {
			t.Errorf("%s: it promised %.3f s, and takes %.3f", name, promised, got)
		}
	}
	tried := 0
	for _, load := range []float64{1.5, 2.5, 4, 7} {
		for _, workers := range []int{1, 2, 3} {
			j := jobOf("keeps up")
			j.workers, j.load = workers, load
			c := j.curve(t)
			if found := try(c, "workers", 0); found != nil {
				more := j
				more.workers, _ = strconv.Atoi(strings.TrimPrefix(found.Setting, "num_workers="))
				check("workers", more, found.Seconds)
				tried++
			}
			memory := c.Bytes(0.5)
			if found := try(c, "cache", memory); found != nil {
				fuller := j
				fuller.misses = j.size / 2
				check("cache", fuller, found.Seconds)
				tried++
			}
		}
	}
	if tried < 12 {
		t.Errorf("only %d tries", tried)
	}
	j := jobOf("slow samples")
	setting := try(j.curve(t), "prefetch", 0).Setting
	ahead := j
	factor, _ := strconv.Atoi(strings.TrimPrefix(setting, "prefetch_factor="))
	ahead.ahead = factor * j.workers
	waits := func(j job) float64 { e := j.curve(t).Run; return e.Wait - e.First }
	if before, after := waits(j), waits(ahead); after > before/2 {
		t.Errorf("%d batches ahead: it waits %.3f, before %.3f", ahead.ahead, after, before)
	}
}

// Ensure that a recorded part stands for its epoch, and that loads are read and decoded as far as that is known.
func TestPartOfAnEpoch(t *testing.T) {
	j := jobOf("few workers")
	recorded, whole := j.run(), j.curve(t)
	l := recorded.Loaders[0]
	l.Samples, l.EpochSamples = 10*j.batches*j.size, 5*j.batches*j.size
	d, err := Run("part", recorded, 1<<20)
	if err != nil || d.Samples != l.Samples || d.Pace.Share != 0.5 || !near(d.Today.Seconds, 5*whole.Today.Seconds) ||
		!near(d.Pace.Limits[0].Seconds, 5*whole.Pace.Limits[0].Seconds) {
		t.Errorf("%+v, %v", d, err)
	}
	late := jobOf("slow start").run()
	late.Loaders[0].EpochSamples = 1000
	if d, err := Run("late", late, 1); err != nil {
		t.Error(err)
	} else if c, err := New(d, 1); err != nil || try(c, "start", 0) != nil {
		t.Errorf("a part of an epoch does not say how often workers start: %v", err)
	}
	if waits := d.Waits(); waits[0].Name != "load" || !strings.HasPrefix(d.WaitsText(), "load ") {
		t.Errorf("%+v", waits)
	}
	share := 0.25
	d.Pace.Source = &share
	sum := 0.0
	for _, w := range d.Waits() {
		sum += w.Seconds
	}
	if waits := d.Waits(); waits[0].Name != "decode" || waits[1].Name != "read" || !near(waits[0].Seconds, 3*waits[1].Seconds) ||
		!near(sum, d.Run.Wait) {
		t.Errorf("%+v", waits)
	}
}
