// Predict compares what `stocached simulate` predicts for each policy with what a real cache then does: a
// segment that is read with gets and filled with sets, over the same reads, or that our loaders read. It prints
// tables in Markdown.
//
//	cd bench && go run ./cmd/predict [-rounds 7] [-samples 100000] [-only loader -python ../.venv/bin/python]
//
// In the cases whose loads are fed in, each set is told what its load took, with noise of 30 % and stalls.
// The draws differ from those of the simulator, and so does the seed of the policy, which is that of the
// segment. In the case whose loads are spun, each load computes for its time, and the cache measures it.
//
// For planned the jobs announce their orders, and the code of the server (server/jobs) says from their
// counters when each sample is read next.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/server/jobs"
	"github.com/stocached/stocached/shm"
)

// reads are those of a case.
type reads struct {
	title    string
	part     float64 // of the samples, or of their bytes, that fit
	jobs     int
	zipf     bool
	sized    bool // samples differ in size
	spun     time.Duration
	samples  int
	epochs   int
	by       ours
	python   string // the interpreter, of a loader of Python
	payload  uint64 // bytes that the last cache had for samples; a segment may round the room by up to 2 MiB
	policies []string
}

const (
	seed        = 1
	sampleBytes = 64
	noise       = 0.3
	allowed     = 0.02 // of what is predicted
)

// result is an epoch.
type result struct{ hitRate, timeSaved float64 }

func main() {
	samples := flag.Int("samples", 100_000, "of the cases whose loads are fed in")
	spun := flag.Int("spun", 6000, "samples of the case whose loads are spun")
	rounds := flag.Int("rounds", 7, "new caches of each policy, and simulations with other seeds")
	only := flag.String("only", "", "cases whose title has this text")
	name := flag.String("policy", "", "this policy alone")
	same := flag.Bool("same", false, "each simulation has the seed of the cache beside it")
	python := flag.String("python", "python3", "the interpreter that runs loaders of Python, which has stocached")
	flag.Parse()
	missed := 0
	for _, r := range append(cases(*samples, *spun), loaders(*samples/6)...) {
		if !strings.Contains(r.title, *only) {
			continue
		}
		if *name != "" {
			r.policies = slices.DeleteFunc(r.policies, func(n string) bool { return n != *name })
		}
		r.python = *python
		n, err := r.table(*rounds, *same)
		if err != nil {
			fmt.Fprintln(os.Stderr, "predict:", err)
			os.Exit(1)
		}
		missed += n
	}
	fmt.Printf("Policies whose last epoch is off by more than %.0f %%: %d.\n", allowed*100, missed)
}

func cases(samples, spun int) []reads {
	every := policy.Names()
	evict := slices.DeleteFunc(slices.Clone(every), func(n string) bool { return n == "planned" || n == "first-indices" })
	unplanned := slices.DeleteFunc(slices.Clone(every), func(n string) bool { return n == "planned" })
	return []reads{
		{title: "Shuffled, a quarter cached", part: 0.25, jobs: 1, samples: samples, epochs: 6, policies: every},
		{title: "Shuffled, half cached", part: 0.5, jobs: 1, samples: samples, epochs: 6, policies: every},
		{title: "Two jobs, half cached", part: 0.5, jobs: 2, samples: samples / 2, epochs: 6, policies: every},
		{title: "Four jobs, half cached", part: 0.5, jobs: 4, samples: samples / 4, epochs: 6, policies: every},
		{title: "Zipf 1.0, a tenth cached", part: 0.1, jobs: 1, zipf: true, samples: samples, epochs: 8, policies: unplanned},
		{title: "Samples that differ in size, a quarter of the bytes cached", part: 0.25, jobs: 1, sized: true,
			samples: samples / 2, epochs: 6, policies: evict},
		{title: "Loads that compute, shuffled, half cached", part: 0.5, jobs: 1, spun: 300 * time.Microsecond, samples: spun,
			epochs: 5, policies: every},
	}
}

// loaders are cases that our loaders read, one sample in four in a cache.
func loaders(samples int) (all []reads) {
	for title, by := range map[string]ours{
		"Loader of Python, no workers":                              {language: "python", ahead: 2},
		"Loader of Python, 2 processes that the training waits for": {language: "python", workers: 2, kind: "process", ahead: 3, first: 4, waits: true},
		"Loader of Python, 2 threads that the training waits for":   {language: "python", workers: 2, kind: "thread", ahead: 3, first: 4, waits: true},
		"Loader of Python with a collate_fn, no workers":            {language: "python", own: true},
		"Loader of Go, 4 goroutines that the training waits for":    {language: "go", workers: 4, ahead: 1, waits: true},
	} {
		by.batch = samples / 64
		all = append(all, reads{title: title, part: 0.25, jobs: 1, samples: samples, epochs: 5, by: by,
			policies: []string{"first-come", "first-indices", "cost", "random", "clock", "fifo", "lru", "lfu"}})
	}
	slices.SortFunc(all, func(a, b reads) int { return strings.Compare(a.title, b.title) })
	return all
}

// trace returns the reads, as `stocached simulate` makes them.
func (r *reads) trace() (*simulate.Trace, error) {
	j := simulate.Jobs{Order: order.Order{Samples: uint64(r.samples), Kind: order.Shuffled, Seed: seed}, Epochs: r.epochs,
		Jobs: r.jobs}
	if r.zipf {
		j.Weights = simulate.Zipf(r.samples, 1)
	}
	t, err := j.Trace()
	if err != nil {
		return nil, err
	}
	t.Seconds = simulate.Lognormal(r.samples, 0.6, seed)
	if r.sized {
		for k := range uint64(r.samples) {
			t.Sizes = append(t.Sizes, uint64(20_000*math.Exp(0.6*simulate.Normal(policy.Random(7, k)))))
		}
	}
	return t, nil
}

// room is that of the cache, in units of the trace.
func (r *reads) room(t *simulate.Trace) uint64 { return uint64(math.Round(r.part * float64(t.Room()))) }

// predict returns the epochs of a policy in the simulator, with this seed and the room of the last cache. Loads that compute have no noise of 30 %.
func (r *reads) predict(t *simulate.Trace, name string, of uint64) (all []result, err error) {
	o := simulate.Options{Seed: of, Noise: noise, Stalls: true, Batch: r.by.batch, Ahead: r.by.ahead, First: r.by.first}
	if r.spun > 0 || r.by.batch > 0 {
		o.Noise, o.Stalls = 0, false
	}
	room := r.room(t)
	if r.sized {
		room = r.payload
	}
	epochs, err := t.Run(name, room, o, nil)
	for _, e := range epochs {
		all = append(all, result{e.HitRate(), e.TimeSaved()})
	}
	return all, err
}

// segment is a real cache, and its jobs.
type segment struct {
	memory  *shm.Segment
	setter  *cache.Cache
	readers []*cache.Cache // of each job
	buffer  []byte
}

func (r *reads) open(t *simulate.Trace, name string) (c *segment, err error) {
	p, err := shm.ParsePolicy(name)
	if err != nil {
		return nil, err
	}
	o := shm.Options{Samples: uint64(r.samples), Policy: p, Slots: r.room(t), SampleBytes: sampleBytes, ClientRecords: 16}
	if r.sized {
		o.Slots, o.SampleBytes, o.Variable = 0, 0, true
		if p.Evicts() {
			o.SlotBytes = shm.SlotBytesFor(t.Typical())
		}
		// A limit counts the tables too. They have the same size for a little more room.
		o.Limit = r.room(t) + 64<<20
		g, err := shm.Create(o)
		if err != nil {
			return nil, err
		}
		o.Limit -= g.PayloadBytes - r.room(t)
		if err := g.Close(); err != nil {
			return nil, err
		}
	}
	c = &segment{buffer: make([]byte, 1<<20)}
	if c.memory, err = shm.Create(o); err != nil {
		return nil, err
	}
	r.payload = c.memory.PayloadBytes
	plans := jobs.New(c.memory)
	options := cache.Options{}
	if p == shm.PolicyPlanned {
		options.Next = plans.Next
	}
	if c.setter, err = cache.Attach(c.memory, options); err != nil {
		return nil, err
	}
	for job := range r.jobs {
		reader, err := cache.Attach(c.memory, cache.Options{})
		if err != nil {
			return nil, err
		}
		c.readers = append(c.readers, reader)
		if p == shm.PolicyPlanned {
			o := order.Order{Samples: uint64(r.samples), Kind: order.Shuffled, Seed: seed + uint64(job)}
			if _, err := plans.Announce(jobs.Plan{Order: o, Owner: reader.Owner()}); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func (c *segment) close() error {
	for _, reader := range c.readers {
		if err := reader.Close(); err != nil {
			return err
		}
	}
	if err := c.setter.Close(); err != nil {
		return err
	}
	return c.memory.Close()
}

// observe reads a new cache, and returns what its epochs did. The time that hits save is that of the loads
// which did not run. If loads compute, it is what the measured time of an epoch's loads is below that of the
// first epoch, in which all samples are loaded.
func (r *reads) observe(t *simulate.Trace, name string, round uint64) (all []result, of uint64, err error) {
	if r.by.language != "" {
		return r.observeLoader(t, name)
	}
	c, err := r.open(t, name)
	if err != nil {
		return nil, 0, err
	}
	at, cold := 0, time.Duration(0)
	for epoch, end := range t.Ends {
		hits, whole, saved, loads := 0, 0.0, 0.0, time.Duration(0)
		for n := end - at; at < end; at++ {
			sample := t.Accesses[at]
			seconds := t.Seconds[sample]
			whole += seconds
			_, hit, err := c.readers[at%r.jobs].Get(int(sample), c.buffer)
			if err != nil {
				return nil, 0, err
			}
			if hit {
				hits++
				saved += seconds
			} else if took, err := r.load(c, t, sample, uint64(epoch)<<8|round); err != nil {
				return nil, 0, err
			} else {
				loads += took
			}
			if at == end-1 {
				all = append(all, result{float64(hits) / float64(n), saved / whole})
			}
		}
		if r.spun > 0 {
			if epoch == 0 {
				cold = loads
			}
			all[epoch].timeSaved = 1 - float64(loads)/float64(cold)
		}
	}
	return all, binary.LittleEndian.Uint64(c.memory.Header.UUID[:]), c.close()
}

// load stores a sample, and returns how long its load took.
func (r *reads) load(c *segment, t *simulate.Trace, sample uint32, draw uint64) (took time.Duration, err error) {
	size := uint64(sampleBytes)
	if r.sized {
		size = t.Sizes[sample]
	}
	seconds := t.Seconds[sample]
	if r.spun > 0 {
		took = loadtime.Measure(context.Background(), func(context.Context) {
			spin(time.Duration(seconds / 0.01 * float64(r.spun)))
		}).All
	} else {
		x := policy.Random(draw, uint64(sample))
		seconds *= math.Exp(noise * simulate.Normal(x))
		if policy.Random(x, 2)%200 == 0 {
			seconds *= 20
		}
		took = time.Duration(seconds * 1e9)
	}
	_, err = c.setter.SetLoaded(int(sample), [][]byte{c.buffer[:size]}, 0, took)
	return took, err
}

// threadTime is the processor time of this thread, which main keeps.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(err) // Linux has this clock
	}
	return time.Duration(now.Nano())
}

// spin computes for this time.
func spin(d time.Duration) {
	for end := threadTime() + d; threadTime() < end; {
		for k := uint64(0); k < 50; k++ {
			sink = policy.Random(sink, k)
		}
	}
}

var sink uint64

func init() { runtime.LockOSThread() }

// table prints a case, and returns how many predictions are off.
func (r *reads) table(rounds int, same bool) (missed int, err error) {
	t, err := r.trace()
	if err != nil {
		return 0, err
	}
	predicted, observed := map[string][][]result{}, map[string][][]result{}
	for round := range rounds {
		for k := range r.policies { // in turn, each round beginning with another
			name := r.policies[(k+round)%len(r.policies)]
			all, of, err := r.observe(t, name, uint64(round))
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			observed[name] = append(observed[name], all)
			if !same {
				of = seed + uint64(round)
			}
			if all, err = r.predict(t, name, of); err != nil {
				return 0, err
			}
			predicted[name] = append(predicted[name], all)
		}
	}
	read := ""
	if r.by.batch > 0 {
		flags := fmt.Sprintf("--ahead %d", r.by.ahead)
		if r.by.first > 0 {
			flags += fmt.Sprintf(" --first %d", r.by.first)
		}
		read = fmt.Sprintf(" Batches of %d samples, `%s`.", r.by.batch, flags)
	}
	fmt.Printf("## %s\n\n%d samples, epoch %d, medians of %d rounds.%s\n\n", r.title, r.samples, r.epochs, rounds, read)
	fmt.Println("| policy | hit rate predicted | observed | off by | spread of one | time saved predicted | observed | off by | "+
		"most in epochs 2 to", r.epochs, "|\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, name := range r.policies {
		var hit, saved [3]float64
		most := 0.0
		for epoch := 1; epoch < r.epochs; epoch++ {
			hit = beside(predicted[name], observed[name], epoch, func(e result) float64 { return e.hitRate })
			saved = beside(predicted[name], observed[name], epoch, func(e result) float64 { return e.timeSaved })
			most = max(most, math.Abs(hit[2]), math.Abs(saved[2]))
		}
		if max(math.Abs(hit[2]), math.Abs(saved[2])) > allowed {
			missed++
		}
		of := func(e result) float64 { return e.hitRate }
		fmt.Printf("| `%s` | %.4f | %.4f | %+.2f %% | %.2f and %.2f %% | %.4f | %.4f | %+.2f %% | %.2f %% |\n", name, hit[0], hit[1],
			hit[2]*100, spread(predicted[name], r.epochs-1, of)*100, spread(observed[name], r.epochs-1, of)*100, saved[0], saved[1],
			saved[2]*100, most*100)
	}
	fmt.Println()
	return missed, nil
}

// spread returns the standard deviation of single runs, in parts of their mean.
func spread(rounds [][]result, epoch int, of func(result) float64) float64 {
	sum, squares, n := 0.0, 0.0, float64(len(rounds))
	for _, round := range rounds {
		sum += of(round[epoch])
		squares += of(round[epoch]) * of(round[epoch])
	}
	if n < 2 || sum == 0 {
		return 0
	}
	return math.Sqrt(max(squares-sum*sum/n, 0)/(n-1)) / (sum / n)
}

// beside returns the medians of what was predicted and observed, and the relative difference.
func beside(predicted, observed [][]result, epoch int, of func(result) float64) [3]float64 {
	median := func(rounds [][]result) float64 {
		var all []float64
		for _, round := range rounds {
			all = append(all, of(round[epoch]))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	p, o := median(predicted), median(observed)
	if p == o {
		return [3]float64{p, o, 0}
	}
	return [3]float64{p, o, o/p - 1}
}
