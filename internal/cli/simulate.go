package cli

import (
	"fmt"
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

// simulated is one epoch of a policy in a cache of one size, or in those of nodes.
type simulated struct {
	policy   policy.Kind
	size     string
	room     uint64 // samples that this size holds
	affinity any    // nodes with affinity; nil: jobs
	epoch    int    // from 1
	of       *simulate.Trace
	simulate.Epoch
}

// part returns so many reads as a part of the dataset.
func (s simulated) part(reads uint64) table.Ratio { return table.Fraction(reads, uint64(s.of.Samples)) }

// bytes is the size in bytes; nil: unknown.
func (s simulated) bytes() any {
	return table.If(s.of.SampleBytes != 0, table.Bytes(s.room*s.of.SampleBytes))
}

var simulateColumns = table.Columns[simulated]{
	table.Shown("policy", "policy", "its name", func(s simulated) any { return s.policy.String() }),
	table.Shown("size", "size", "of the cache, as given", func(s simulated) any { return s.size }),
	table.Shown("slots", "slots", "samples that it holds", func(s simulated) any { return table.Count(min(s.room, uint64(s.of.Samples))) }),
	table.InJSON("size_bytes", "the same in bytes; null if the size of a sample is unknown", simulated.bytes),
	table.Shown("epoch", "epoch", "from 1 on, which begins with an empty cache; for people the last one",
		func(s simulated) any { return s.epoch }),
	table.InJSON("reads", "of all jobs or nodes", func(s simulated) any { return table.Count(s.Reads) }),
	table.InJSON("hits", "reads of samples that the cache had", func(s simulated) any { return table.Count(s.Hits) }),
	table.Shown("hit_rate", "hit rate", "hits of all reads", func(s simulated) any { return table.Ratio(s.HitRate()) }),
	table.Shown("time_saved", "time saved", "part of the time to load all reads that hits saved",
		func(s simulated) any { return table.Ratio(s.TimeSaved()) }),
	table.Shown("replaced", "replaced", "samples that went for others in this epoch",
		func(s simulated) any { return table.Count(s.Replaced) }),
}

// nodesColumns are further ones with --nodes.
var nodesColumns = table.Columns[simulated]{
	table.Shown("affinity", "affinity", "node: global batches are dealt to the nodes that own their samples; none: they "+
		"are not", func(s simulated) any { return s.affinity }),
	table.Shown("least", "least", "hit rate of the node that has the lowest", func(s simulated) any { return table.Ratio(s.Least) }),
	table.Shown("tier", "tier", "loads from the cluster tier, as a part of the dataset. In the first epoch, servers also load what\n"+
		"their nodes own and others read", func(s simulated) any { return s.part(s.Tier) }),
	table.Shown("source", "source", "loads from the source, likewise", func(s simulated) any { return s.part(s.Source) }),
	table.Shown("link", "link", "loads over the link of the node that has most, likewise", func(s simulated) any { return s.part(s.Link) }),
}

var simulateNodesColumns = slices.Concat(nodesColumns[:1], simulateColumns, nodesColumns[1:])

type simulateFlags struct {
	samples     uint64
	sizes       []string
	sampleBytes size
	policies    []string
	epochs      uint32
	jobs        uint32
	nodes       uint32
	names       []string
	tier        string
	batch       uint32
	ahead       uint32
	seed        uint64
	weights     string
	costs       string
	trace       string
	json        bool
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
			`A timeline names the samples that a loader loaded, and not its hits. So it needs an epoch that began with an
empty cache. Epochs with hits, and further ones, read the same samples in shuffled orders.`,
			`Loaders look up the samples of a batch together, and some batches (--ahead) before they store what those
before missed. A cache that evicts has more hits for it, above all if it is small beside these batches.
--ahead is 2 for loaders of Python without workers, 1 for loaders of Go, and 2 N - 1 for N workers that the
training waits for.`,
			`With --nodes, one job reads the dataset on several nodes. Each node has a cache of --size, and what it
does not have comes from the cluster tier, else from the source. The table has one line without affinity
(each rank reads its own part of the order), and one with it.`,
			simulateColumns.Explain("OUTPUT, a line for each policy and size; with --json an array of all epochs"),
			nodesColumns.Explain("FURTHER COLUMNS with --nodes"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Example: `  stocached simulate --samples 100000 --size 25%,50% --policy first-come,cost --costs lognormal:0.6
  stocached simulate --samples 1281167 --sample-bytes 150528 --size 64GiB --jobs 2
  stocached simulate --samples 100000 --weights zipf:1.0 --size 10% --policy clock,lfu,lru
  stocached simulate --trace run.json --size 8GiB --epochs 4
  stocached simulate --samples 1281167 --nodes 8 --size 12.5% --batch 256`,
		Args: arguments(0, 0, "none: --samples or --trace says what is read"),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	flags := c.Flags()
	flags.Uint64Var(&f.samples, "samples", 0, "number of samples of the dataset")
	flags.StringSliceVar(&f.sizes, "size", []string{"50%"},
		"of the cache: a part of the dataset such as 50%, or bytes such as 8GiB;\nseveral, with commas between them, or "+
			"repeated\n")
	flags.Var(&f.sampleBytes, "sample-bytes", "bytes of a sample; needed for a --size in bytes")
	flags.StringSliceVar(&f.policies, "policy", []string{"first-come", "cost"},
		"policies, with commas between them, or repeated")
	flags.Uint32Var(&f.epochs, "epochs", 0, "number of epochs (default 8; with --trace those of a timeline, or 1);\nother "+
		"traces are divided into so many equal parts\n")
	flags.Uint32Var(&f.jobs, "jobs", 1, "jobs that read the dataset side by side, each in its own order")
	flags.Uint32Var(&f.nodes, "nodes", 0, "one job on so many nodes, each with a cache of --size, without and with affinity")
	flags.StringSliceVar(&f.names, "names", nil, "of the nodes (host names, or STOCACHED_NODE), with --nodes: they decide who owns which "+
		"sample\n(default: node-0,node-1,...)")
	flags.StringVar(&f.tier, "tier", "0%", "size of the cluster tier, with --nodes: a part of the dataset, or bytes")
	flags.Uint32Var(&f.batch, "batch", 256, "samples of a batch, which a job looks up together; with --nodes those of each node in a\n"+
		"global batch; without a loader 0; of a --trace as recorded, else 0\n")
	flags.Uint32Var(&f.ahead, "ahead", 2, "batches that a job looks up before it stores the misses of a batch")
	flags.Uint64Var(&f.seed, "seed", 0, "of the orders, of the costs and of the policies")
	flags.StringVar(&f.weights, "weights", "", "draw samples by weight: zipf:1.0 has weights of 1/k^1.0")
	flags.StringVar(&f.costs, "costs", "equal",
		"times of loads: equal, or lognormal:SIGMA; without it a timeline has its own")
	flags.StringVar(&f.trace, "trace", "", "read what this file says: a timeline, or indices")
	jsonFlag(c, &f.json)
	for _, flag := range []string{"samples", "weights", "jobs", "nodes"} {
		exclusive(c, "trace", flag)
	}
	exclusive(c, "nodes", "jobs")
	exclusive(c, "nodes", "weights")
	for flag, values := range map[string][]string{"policy": policy.Names(), "size": {"25%", "50%"}, "weights": {"zipf:1.0"},
		"costs": {"equal", "lognormal:0.6"}} {
		choices(c, flag, values...)
	}
	return c
}

// reads returns what jobs read, or what a trace says; of nodes only the samples.
func (f *simulateFlags) reads(c *cobra.Command, o order.Order) (t *simulate.Trace, err error) {
	given := c.Flags().Changed
	j := simulate.Jobs{Order: o, Epochs: int(f.epochs), Jobs: int(f.jobs)}
	switch {
	case f.trace != "":
		t, err = simulate.ReadFile(f.trace, int(f.epochs), f.seed)
	case !given("samples"):
		err = usage("--samples or --trace is needed: what is read")
	case f.nodes > 0:
		t = &simulate.Trace{Samples: int(f.samples)}
	default:
		if f.weights != "" {
			s, err := parameter("weights", f.weights, "zipf", "zipf:1.0", 10)
			if err != nil {
				return nil, err
			}
			j.Zipf = &s
		}
		t, err = j.Trace()
	}
	if err != nil {
		return nil, err
	}
	if given("sample-bytes") {
		t.SampleBytes = uint64(f.sampleBytes)
	}
	if f.trace == "" || given("batch") {
		t.Batch = int(f.batch)
	}
	if f.costs != "equal" {
		sigma, err := parameter("costs", f.costs, "lognormal", "equal or lognormal:0.6", 5)
		if err != nil {
			return nil, err
		}
		t.Seconds = simulate.Lognormal(t.Samples, sigma, f.seed)
	} else if given("costs") {
		t.Seconds = nil
	}
	return t, nil
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

// parseRoom reads the size of a flag as a number of samples.
func parseRoom(flag, text string, t *simulate.Trace) (room uint64, err error) {
	if part, isPart := strings.CutSuffix(text, "%"); isPart {
		percent, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(percent >= 0 && percent <= 1e6) {
			return 0, usage("--%s: %q is not a part of the dataset; write a number and %%", flag, text)
		}
		return uint64(math.Round(percent / 100 * float64(t.Samples))), nil
	}
	n, err := bytesize.Parse(text)
	switch {
	case err != nil:
		return 0, usage("--%s: %w; or a part of the dataset such as 50%%", flag, err)
	case t.SampleBytes == 0:
		return 0, usage("--%s %s: --sample-bytes is needed for a size in bytes; or write a part, such as 50%%", flag, text)
	}
	return n / t.SampleBytes, nil
}

// run simulates each policy with each size; nodes without and with affinity.
func (f *simulateFlags) run(c *cobra.Command) error {
	given, stdout, stderr := c.Flags().Changed, c.OutOrStdout(), c.ErrOrStderr()
	if f.trace == "" && f.epochs == 0 {
		f.epochs = 8
	}
	columns, affinities := simulateColumns, []any{nil}
	switch {
	case f.nodes == 0 && (given("names") || given("tier")):
		return usage("--names and --tier are for a job on several nodes: give --nodes")
	case f.nodes > 0:
		columns, affinities = simulateNodesColumns, []any{"none", "node"}
		if !given("policy") {
			f.policies = []string{policy.KindFirstCome.String()}
		}
	}
	var kinds []policy.Kind
	for _, name := range f.policies {
		kind, err := policy.Parse(name)
		if err != nil {
			return usage("--policy: %w", err)
		}
		if kind.NeedsPlans() && f.nodes > 0 {
			return usage("--policy %s asks a server, which does not know nodes; simulate it without --nodes", name)
		}
		kinds = append(kinds, kind)
	}
	read := order.Order{Samples: f.samples, Kind: order.Shuffled, Seed: f.seed}
	t, err := f.reads(c, read)
	if err != nil {
		return err
	}
	total := t.Reads()
	if f.nodes > 0 {
		total = t.Samples * int(f.epochs)
	}
	tier, err := parseRoom("tier", f.tier, t)
	if err != nil {
		return err
	}
	rooms := make([]uint64, len(f.sizes))
	for k, text := range f.sizes {
		f.sizes[k] = strings.TrimSpace(text)
		if rooms[k], err = parseRoom("size", f.sizes[k], t); err != nil {
			return err
		}
		switch {
		case rooms[k] == 0:
			return usage("--size %s holds no sample", f.sizes[k])
		case rooms[k] >= uint64(t.Samples):
			complain(stderr, fmt.Sprintf("--size %s holds all %s samples: no policy is needed", f.sizes[k], table.Count(t.Samples)))
		}
	}
	for _, note := range t.Notes {
		complain(stderr, note)
	}
	if f.trace != "" && total == t.Samples {
		complain(stderr, "this trace reads no sample twice, so no cache can hit; with --epochs 4, a timeline is read again in shuffled orders")
	}
	bar := newProgress(stderr, "simulate", uint64(total*len(kinds)*len(rooms)*len(affinities)), false)
	defer bar.end()
	var all, last []simulated
	o, done := simulate.Options{Seed: f.seed, Noise: 0.3, Stalls: true, Batch: t.Batch, Ahead: int(f.ahead), Tier: tier}, 0
	for _, kind := range kinds {
		for s, room := range rooms {
			for _, affinity := range affinities {
				of := t
				if f.nodes > 0 {
					n := simulate.Nodes{Order: read, Epochs: int(f.epochs), Nodes: int(f.nodes), Names: f.names, Batch: t.Batch,
						Room: room, Affinity: affinity == "node"}
					if of, err = n.Trace(); err != nil {
						return err
					}
					of.Seconds = t.Seconds
				}
				epochs := of.Run(kind, room, o, func(reads int) { bar.set(uint64(done + reads)) })
				done += total
				bar.set(uint64(done))
				for k, e := range epochs {
					all = append(all, simulated{kind, f.sizes[s], room, affinity, k + 1, t, e})
				}
				last = append(last, all[len(all)-1])
			}
		}
	}
	if f.json {
		return columns.Rows(stdout, all, true)
	}
	return columns.Table(stdout, last)
}
