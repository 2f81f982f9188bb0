package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/simulate"
	bytesize "github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// simulated is one epoch of a policy in a cache of one size.
type simulated struct {
	policy string
	size   *simulatedSize
	epoch  int // from 1
	of     []simulate.Epoch
}

func (s simulated) result() simulate.Epoch { return s.of[s.epoch-1] }

// simulatedSize is a value of --size.
type simulatedSize struct {
	text    string
	room    uint64 // in units of the trace
	unit    uint64 // bytes; 0: unknown
	samples any    // nil: samples differ in size
}

var simulateColumns = table.Columns[simulated]{
	table.Shown("policy", "policy", "its name", func(s simulated) any { return s.policy }),
	table.Shown("size", "size", "of the cache, as given", func(s simulated) any { return s.size.text }),
	table.Shown("slots", "slots", "samples that it holds; unknown if they differ in size",
		func(s simulated) any { return s.size.samples }),
	table.InJSON("size_bytes", "the same in bytes; null if the size of a sample is unknown", func(s simulated) any {
		if s.size.unit == 0 {
			return nil
		}
		return table.Bytes(s.size.room * s.size.unit)
	}),
	table.Shown("epoch", "epoch", "from 1 on, which begins with an empty cache; for people the last one",
		func(s simulated) any { return s.epoch }),
	table.InJSON("reads", "of all jobs", func(s simulated) any { return table.Count(s.result().Reads) }),
	table.InJSON("hits", "reads of samples that the cache had",
		func(s simulated) any { return table.Count(s.result().Hits) }),
	table.Shown("hit_rate", "hit rate", "hits of all reads",
		func(s simulated) any { return table.Ratio(s.result().HitRate()) }),
	table.Shown("time_saved", "time saved", "part of the time to load all reads that hits saved",
		func(s simulated) any { return table.Ratio(s.result().TimeSaved()) }),
	table.Shown("replaced", "replaced", "samples that went for others in this epoch",
		func(s simulated) any { return table.Count(s.result().Replaced) }),
}

type simulateFlags struct {
	samples     uint64
	sizes       []string
	sampleBytes size
	policies    []string
	epochs      int
	jobs        int
	ahead       int
	first       int
	batches     bool // --batch or --ahead was given
	seed        uint64
	order       string
	weights     string
	costs       string
	noise       float64
	stalls      bool
	trace       string
	json        bool
	nodesFlags
}

func newSimulate() *cobra.Command {
	f := &simulateFlags{}
	c := &cobra.Command{
		Use:   "simulate (--samples N | --trace FILE) [--size 50%|8GiB ...] [--policy first-come,cost ...]",
		Short: "Say how often policies would hit, and how much time they would save",
		Long: paragraphs(`Runs policies over the reads of a job, before you buy memory or choose a policy. It runs the code
that caches run, and needs no cache. The reads come from an order of stocached, from a recorded timeline
of a loader (trace="run.json"), or from a file with one index a line. Files may be compressed by gzip.`,
			`POLICIES: `+strings.Join(policy.Names(), ", ")+`.`,
			`If the samples of a trace differ in size, policies that evict place them in slots, as caches do. With
planned, the simulator counts bytes only.`,
			`A timeline names the samples that a loader loaded, and not its hits. If an epoch read each sample once, its
hits are the samples that it did not load, and they are mixed among these at random. Other epochs with hits
are left out. Further epochs read the same samples in shuffled orders.`,
			`Loaders look up the samples of a batch together, and some batches (--ahead) before they store what those
before missed. A cache that evicts has more hits for it, above all if it is small beside these batches.
--ahead is 2 for loaders of Python without workers, and 1 for loaders of Go. With N workers that the training
waits for, --ahead is 2 N - 1 and --first 2 N: they look up so many when an epoch begins.`,
			`With --nodes, one job reads the dataset on several nodes. Each node has a cache of --size, and what it
does not have comes from the cluster tier, else from the source. The table has one line without affinity
(each rank reads its own part of the order), and one with it.`,
			simulateColumns.Explain("OUTPUT, a line for each policy and size; with --json an array of all epochs"),
			simulateNodesColumns.Explain("OUTPUT with --nodes"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Example: `  stocached simulate --samples 100000 --size 25%,50% --policy first-come,cost --costs lognormal:0.6
  stocached simulate --samples 1281167 --sample-bytes 150528 --size 64GiB --jobs 2
  stocached simulate --samples 100000 --weights zipf:1.0 --size 10% --policy clock,lfu,lru
  stocached simulate --trace run.json --size 8GiB --epochs 4
  stocached simulate --samples 1281167 --nodes 8 --size 12.5% --batch 256`,
		Args:              arguments(0, 0, "none: --samples or --trace says what is read"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			if f.nodes > 0 {
				return f.runNodes(c)
			}
			t, err := f.reads(c)
			if err != nil {
				return err
			}
			return f.run(t, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.Uint64Var(&f.samples, "samples", 0, "number of samples of the dataset")
	flags.StringArrayVar(&f.sizes, "size", []string{"50%"},
		"of the cache: a part of the dataset such as 50%, or bytes such as 8GiB;\nseveral, with commas between them, or "+
			"repeated\n")
	flags.Var(&f.sampleBytes, "sample-bytes", "bytes of a sample; needed for a --size in bytes")
	flags.StringArrayVar(&f.policies, "policy", []string{"first-come,cost"},
		"policies, with commas between them, or repeated")
	flags.IntVar(&f.epochs, "epochs", 0, "number of epochs (default 8; with --trace those of a timeline, or 1);\nother "+
		"traces are divided into so many equal parts\n")
	flags.IntVar(&f.jobs, "jobs", 1, "jobs that read the dataset side by side, each in its own order")
	flags.IntVar(&f.ahead, "ahead", 2, "batches that a job looks up before it stores the misses of a batch")
	flags.IntVar(&f.first, "first", 0, "batches that a job looks up at once when an epoch begins (default: --ahead)")
	flags.Uint64Var(&f.seed, "seed", 0, "of the orders, of the costs and of the policies")
	flags.StringVar(&f.order, "order", "shuffled",
		"shuffled, sequential, windows:SAMPLES or blocks:SAMPLES:BLOCKS (blocks shuffled together)")
	flags.StringVar(&f.weights, "weights", "", "draw samples by weight: zipf:1.0 has weights of 1/k^1.0")
	flags.StringVar(&f.costs, "costs", "equal",
		"times of loads: equal, or lognormal:SIGMA; without it a timeline has its own")
	flags.Float64Var(&f.noise, "noise", 0.3, "error of measured times, as the standard deviation of their logarithm")
	flags.BoolVar(&f.stalls, "stalls", true, "one load in 200 takes 20 times as long")
	flags.StringVar(&f.trace, "trace", "", "read what this file says: a timeline, or indices")
	jsonFlag(c, &f.json)
	f.add(c)
	for _, flag := range []string{"samples", "order", "weights", "jobs"} {
		exclusive(c, "trace", flag)
	}
	for flag, values := range map[string][]string{"policy": policy.Names(), "size": {"25%", "50%"},
		"order": {"shuffled", "sequential", "windows:", "blocks:"}, "weights": {"zipf:1.0"},
		"costs": {"equal", "lognormal:0.6"}} {
		choices(c, flag, values...)
	}
	return c
}

// reads returns the trace to simulate.
func (f *simulateFlags) reads(c *cobra.Command) (*simulate.Trace, error) {
	given := c.Flags().Changed
	switch {
	case f.trace == "" && !given("samples"):
		return nil, usage("--samples or --trace is needed: what is read")
	case f.trace == "" && f.samples == 0:
		return nil, usage("--samples is 0; a dataset has at least one sample")
	case f.epochs < 1 && given("epochs"):
		return nil, usage("--epochs is %d; there is at least 1", f.epochs)
	case f.jobs < 1:
		return nil, usage("--jobs is %d; there is at least 1", f.jobs)
	case f.batch > mostBatch || f.ahead < 0 || f.ahead > mostBatch:
		return nil, usage("--batch is %d and --ahead is %d; neither is below 0 or above %d", f.batch, f.ahead, mostBatch)
	case f.first < 0 || f.first > mostBatch || f.first == 0 && given("first"):
		return nil, usage("--first is %d; give 1 to %d batches", f.first, mostBatch)
	case !(f.noise >= 0 && f.noise <= 3):
		return nil, usage("--noise is %g, which is not in 0..3", f.noise)
	case f.weights != "" && given("order"):
		return nil, usage("--weights and --order: give one of them, not both")
	}
	sigma, err := f.sigma()
	if err != nil {
		return nil, err
	}
	t, err := f.source()
	if err != nil {
		return nil, err
	}
	if given("sample-bytes") {
		if t.Sizes != nil {
			return nil, usage("--sample-bytes: the samples of this trace have sizes of their own")
		}
		t.SampleBytes = uint64(f.sampleBytes)
	}
	f.batches = given("batch") || given("ahead") || given("first")
	if f.trace == "" || given("batch") {
		t.Batch = int(f.batch)
	}
	if given("costs") {
		t.Seconds = nil
	}
	if sigma > 0 {
		t.Seconds = simulate.Lognormal(t.Samples, sigma, f.seed)
	}
	return t, nil
}

// mostBatch bounds --batch and --ahead.
const mostBatch = 1 << 20

// defaultEpochs is the number of epochs of an order.
const defaultEpochs = 8

func (f *simulateFlags) source() (*simulate.Trace, error) {
	if f.trace != "" {
		return simulate.ReadFile(f.trace, f.epochs, f.seed)
	}
	o, err := f.parseOrder()
	if err != nil {
		return nil, err
	}
	j := simulate.Jobs{Order: o, Epochs: cmp.Or(f.epochs, defaultEpochs), Jobs: f.jobs}
	if err := j.Check(); err != nil {
		return nil, usageError{err}
	}
	if f.weights != "" {
		s, err := parameter("weights", f.weights, "zipf", "zipf:1.0", 10)
		if err != nil {
			return nil, err
		}
		j.Weights = simulate.Zipf(int(f.samples), s)
	}
	return j.Trace()
}

// sigma returns the standard deviation of --costs; 0: equal.
func (f *simulateFlags) sigma() (float64, error) {
	if f.costs == "equal" {
		return 0, nil
	}
	return parameter("costs", f.costs, "lognormal", "equal or lognormal:0.6", 5)
}

// parameter reads "NAME:NUMBER" of a flag.
func parameter(flag, text, name, want string, most float64) (float64, error) {
	number, named := strings.CutPrefix(text, name+":")
	x, err := strconv.ParseFloat(number, 64)
	if !named || err != nil || !(x >= 0 && x <= most) {
		return 0, usage("--%s: %q is not %s, with a number of 0 to %g", flag, text, want, most)
	}
	return x, nil
}

func (f *simulateFlags) parseOrder() (order.Order, error) {
	o := order.Order{Samples: f.samples, Seed: f.seed}
	kind, rest, _ := strings.Cut(f.order, ":")
	first, second, two := strings.Cut(rest, ":")
	a, aErr := strconv.ParseUint(first, 10, 32)
	b, bErr := strconv.ParseUint(second, 10, 32)
	switch {
	case f.order == "shuffled":
		o.Kind = order.Shuffled
	case f.order == "sequential":
		o.Kind = order.Sequential
	case kind == "windows" && aErr == nil && a > 0 && !two:
		o.Kind, o.Window = order.Windows, a
	case kind == "blocks" && aErr == nil && bErr == nil && a > 0 && b > 0:
		o.Kind, o.Block, o.Window = order.Blocks, a, b
	default:
		return o, usage("--order: %q is not shuffled, sequential, windows:1000 or blocks:64:16", f.order)
	}
	return o, nil
}

// values splits the values of a flag that may be repeated and have commas.
func values(flag string, given []string) (all []string, err error) {
	for _, text := range given {
		for value := range strings.SplitSeq(text, ",") {
			if value = strings.TrimSpace(value); value == "" {
				return nil, usage("--%s: %q has an empty value", flag, text)
			}
			if !slices.Contains(all, value) {
				all = append(all, value)
			}
		}
	}
	return all, nil
}

// parseSize reads the size of a flag.
func parseSize(flag, text string, t *simulate.Trace) (*simulatedSize, error) {
	s := &simulatedSize{text: text, unit: t.Unit()}
	if part, isPart := strings.CutSuffix(text, "%"); isPart {
		percent, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(percent > 0 && percent <= 1e6) {
			return nil, usage("--%s: %q is not a part of the dataset; write a number above 0 and %%", flag, text)
		}
		s.room = uint64(math.Round(percent / 100 * float64(t.Room())))
	} else {
		n, err := bytesize.Parse(text)
		if err != nil {
			return nil, usage("--%s: %w; or a part of the dataset such as 50%%", flag, err)
		}
		if s.unit == 0 {
			return nil, usage("--%s %s: --sample-bytes is needed for a size in bytes; or write a part, such as 50%%",
				flag, text)
		}
		s.room = n / s.unit
	}
	if s.room == 0 {
		return nil, usage("--%s %s holds no sample", flag, text)
	}
	if t.Sizes == nil {
		s.samples = table.Count(min(s.room, uint64(t.Samples)))
	}
	return s, nil
}

func (f *simulateFlags) run(t *simulate.Trace, stdout, stderr io.Writer) error {
	policies, err := values("policy", f.policies)
	if err != nil {
		return err
	}
	for _, name := range policies {
		if _, err := policy.Parse(name); err != nil {
			return usage("--policy: %w", err)
		}
	}
	texts, err := values("size", f.sizes)
	if err != nil {
		return err
	}
	var sizes []*simulatedSize
	for _, text := range texts {
		s, err := parseSize("size", text, t)
		if err != nil {
			return err
		}
		if s.room >= t.Room() {
			complain(stderr, fmt.Sprintf("--size %s holds all %s samples: no policy is needed", text, table.Count(t.Samples)))
		}
		sizes = append(sizes, s)
	}
	f.noteBatches(t, policies, sizes, stderr)
	for _, note := range t.Notes {
		complain(stderr, note)
	}
	if f.trace != "" && len(t.Accesses) == t.Samples {
		note := "this trace reads no sample twice, so no cache can hit"
		if t.Once {
			note += "; with --epochs 4, three more epochs read the same samples"
		}
		complain(stderr, note)
	}
	all, last, err := f.simulate(t, policies, sizes, stderr)
	if err != nil {
		return err
	}
	if f.json {
		return simulateColumns.Rows(stdout, all, true)
	}
	return simulateColumns.Table(stdout, last)
}

// noteBatches says that the hits of policies which evict depend on batches, if each epoch reads each sample once, a
// cache is small beside its batches, and no flag says what they are.
func (f *simulateFlags) noteBatches(t *simulate.Trace, policies []string, sizes []*simulatedSize, stderr io.Writer) {
	unlike := slices.DeleteFunc(slices.Clone(policies), func(name string) bool {
		return slices.Contains([]string{"first-come", "first-indices", "cost", "planned"}, name)
	})
	if f.batches || t.Batch == 0 || !t.Once || len(unlike) == 0 {
		return
	}
	together := uint64(t.Batch) * uint64(f.ahead+1)
	for _, s := range sizes {
		slots := float64(s.room) / float64(t.Room()) * float64(t.Samples)
		if float64(together)*50 > slots && s.room < t.Room() {
			complain(stderr, fmt.Sprintf("a loader looks up %s samples (batches of %d, %d ahead) before it stores them, and --size %s "+
				"holds %s: the hits of %s depend on that, so say what your job has by --batch and --ahead", table.Count(together),
				t.Batch, f.ahead, s.text, table.Count(uint64(slots)), strings.Join(unlike, ", ")))
			return
		}
	}
}

// simulate returns all epochs, and the last ones.
func (f *simulateFlags) simulate(t *simulate.Trace, policies []string, sizes []*simulatedSize, stderr io.Writer) (
	all, last []simulated, err error) {
	reads := len(t.Accesses)
	bar := newProgress(stderr, "simulate", uint64(reads*len(policies)*len(sizes)), false)
	defer bar.end()
	o := simulate.Options{Seed: f.seed, Noise: f.noise, Stalls: f.stalls, Batch: t.Batch, Ahead: f.ahead, First: f.first}
	done := 0
	for _, name := range policies {
		for _, s := range sizes {
			epochs, err := t.Run(name, s.room, o, func(reads int) error {
				bar.set(uint64(done + reads))
				return nil
			})
			if err != nil {
				return nil, nil, err
			}
			done += reads
			bar.set(uint64(done))
			for k := range epochs {
				all = append(all, simulated{name, s, k + 1, epochs})
			}
			last = append(last, all[len(all)-1])
		}
	}
	return all, last, nil
}
