package cli

import (
	"cmp"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/simulate"
)

// simulatedNodes is one epoch of a job on several nodes.
type simulatedNodes struct {
	affinity, policy string
	size             *simulatedSize
	epoch            int // from 1
	samples          uint64
	of               simulate.ClusterEpoch
}

// part returns so many reads as a part of the dataset.
func (s simulatedNodes) part(reads uint64) table.Ratio { return table.Fraction(reads, s.samples) }

var simulateNodesColumns = table.Columns[simulatedNodes]{
	table.Shown("affinity", "affinity", "node: global batches are dealt to the nodes that own their samples; none: they are not",
		func(s simulatedNodes) any { return s.affinity }),
	table.Shown("policy", "policy", "of the cache of each node", func(s simulatedNodes) any { return s.policy }),
	table.Shown("size", "size", "of the cache of each node, as given", func(s simulatedNodes) any { return s.size.text }),
	table.Shown("epoch", "epoch", "from 1 on, which begins with empty caches; for people the last one",
		func(s simulatedNodes) any { return s.epoch }),
	table.Shown("nodes", "nodes", "that read this epoch", func(s simulatedNodes) any { return s.of.Nodes }),
	table.InJSON("reads", "of all nodes", func(s simulatedNodes) any { return table.Count(s.of.Reads) }),
	table.Shown("hit_rate", "local hits", "reads from the cache of the own node, of all reads",
		func(s simulatedNodes) any { return table.Ratio(s.of.HitRate()) }),
	table.Shown("least_hit_rate", "least", "the same of the node that has fewest",
		func(s simulatedNodes) any { return table.Ratio(s.of.LeastHits) }),
	table.Shown("tier", "tier", "reads from the cluster tier, as a part of the dataset",
		func(s simulatedNodes) any { return s.part(s.of.Tier) }),
	table.Shown("source", "source", "reads from the source, as a part of the dataset",
		func(s simulatedNodes) any { return s.part(s.of.Source) }),
	table.InJSON("ahead", "further reads of servers from tier and source, likewise: in the first epoch, of what their nodes own and "+
		"others read", func(s simulatedNodes) any { return s.part(s.of.AheadTier + s.of.AheadSource) }),
	table.InJSON("ahead_source", "of these, those from the source", func(s simulatedNodes) any { return s.part(s.of.AheadSource) }),
	table.Shown("link", "link", "reads over the link of the node that has most, those of its server too, as a part of the dataset",
		func(s simulatedNodes) any { return s.part(s.of.MostRemote) }),
	table.Shown("link_bytes", "in bytes", "the same in bytes; null if the size of a sample is unknown", func(s simulatedNodes) any {
		if s.size.unit == 0 {
			return nil
		}
		return table.Bytes(s.of.MostRemote * s.size.unit)
	}),
	table.Shown("imbalance", "imbalance", "reads over the link of the node that has most, over the mean",
		func(s simulatedNodes) any { return table.Ratio(s.of.Imbalance()) }),
	table.InJSON("dealing_seconds", "processor time of one node to deal all global batches of the epoch",
		func(s simulatedNodes) any { return s.of.Dealing.Seconds() }),
}

// nodesFlags are the flags of simulate for a job on several nodes.
type nodesFlags struct {
	nodes   int
	sizesOf []string // of the nodes
	servers bool
	names   []string
	batch   uint64
	tier    string
	lose    int
}

// nodesOnly are the flags that need --nodes, and notWithNodes those that it excludes.
var (
	nodesOnly    = []string{"names", "tier", "lose", "node-sizes", "servers"}
	notWithNodes = []string{"trace", "jobs", "ahead", "first", "weights", "costs", "noise", "stalls"}
)

func (f *nodesFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.IntVar(&f.nodes, "nodes", 0, "one job on so many nodes, each with a cache of --size, without and with affinity")
	flags.StringSliceVar(&f.names, "names", nil,
		"of the nodes (host names, or STOCACHED_NODE), with --nodes: they decide who owns which sample (default: node-0,node-1,...)")
	flags.Uint64Var(&f.batch, "batch", 256, "samples of a batch, which a job looks up together; with --nodes those of each node in a\n"+
		"global batch; without a loader 0; of a --trace as recorded, else 0\n")
	flags.StringSliceVar(&f.sizesOf, "node-sizes", nil, "of the caches of the nodes, instead of --size, with --nodes: 100%,50%")
	flags.BoolVar(&f.servers, "servers", true, "servers have the caches, with --nodes: in the first epoch they also read what their nodes own\n"+
		"and others read")
	flags.StringVar(&f.tier, "tier", "0%", "size of the cluster tier, with --nodes: a part of the dataset, or bytes")
	flags.IntVar(&f.lose, "lose", 0, "lose a node at the start of this epoch, with --nodes")
	for _, flag := range notWithNodes {
		exclusive(c, "nodes", flag)
	}
	exclusive(c, "size", "node-sizes")
}

func (f *nodesFlags) check(c *cobra.Command) error {
	if !c.Flags().Changed("nodes") {
		for _, flag := range nodesOnly {
			if c.Flags().Changed(flag) {
				return usage("--%s is for a job on several nodes: give --nodes", flag)
			}
		}
		return nil
	}
	if f.nodes < 1 {
		return usage("--nodes is %d; there is at least 1", f.nodes)
	}
	return nil
}

// runNodes simulates a job on several nodes.
func (f *simulateFlags) runNodes(c *cobra.Command) error {
	stdout, stderr := c.OutOrStdout(), c.ErrOrStderr()
	if f.samples == 0 {
		return usage("--samples is 0, or not given; a dataset has at least one sample")
	}
	o, err := f.parseOrder()
	if err != nil {
		return err
	}
	policies := []string{"first-come"}
	if c.Flags().Changed("policy") {
		if policies, err = values("policy", f.policies); err != nil {
			return err
		}
	}
	texts, err := values("size", f.sizes)
	if err != nil {
		return err
	}
	t := &simulate.Trace{Samples: int(f.samples), SampleBytes: uint64(f.sampleBytes)}
	tier := &simulatedSize{}
	if strings.TrimSpace(strings.TrimSuffix(f.tier, "%")) != "0" {
		if tier, err = parseSize("tier", f.tier, t); err != nil {
			return err
		}
	}
	var runs []simulate.Cluster
	var sizes []*simulatedSize
	add := func(size *simulatedSize, rooms []uint64) error {
		for _, policy := range policies {
			for _, affinity := range []bool{false, true} {
				run := simulate.Cluster{Order: o, Epochs: cmp.Or(f.epochs, defaultEpochs), Nodes: f.nodes, Names: f.names, Servers: f.servers,
					Batch: f.batch, Affinity: affinity, Policy: policy, Room: size.room, Rooms: rooms, Tier: tier.room, Lose: f.lose, Seed: f.seed}
				if err := run.Check(); err != nil {
					return usageError{err}
				}
				runs, sizes = append(runs, run), append(sizes, size)
			}
		}
		return nil
	}
	if f.sizesOf != nil {
		size, rooms := &simulatedSize{text: strings.Join(f.sizesOf, ","), unit: t.Unit()}, []uint64{}
		for _, text := range f.sizesOf {
			one, err := parseSize("node-sizes", text, t)
			if err != nil {
				return err
			}
			rooms = append(rooms, one.room)
		}
		if err := add(size, rooms); err != nil {
			return err
		}
		texts = nil
	}
	for _, text := range texts {
		size, err := parseSize("size", text, t)
		if err != nil {
			return err
		}
		if err := add(size, nil); err != nil {
			return err
		}
	}
	all, last, err := simulateNodes(runs, sizes, stderr)
	if err != nil {
		return err
	}
	if f.json {
		return simulateNodesColumns.Rows(stdout, all, true)
	}
	return simulateNodesColumns.Table(stdout, last)
}

// simulateNodes returns all epochs, and the last ones.
func simulateNodes(runs []simulate.Cluster, sizes []*simulatedSize, stderr io.Writer) (all, last []simulatedNodes, err error) {
	reads := uint64(0)
	for _, run := range runs {
		reads += run.Order.Samples * uint64(run.Epochs)
	}
	bar := newProgress(stderr, "simulate", reads, false)
	defer bar.end()
	before := uint64(0)
	for k, run := range runs {
		epochs, err := run.Run(func(reads int) error {
			bar.set(before + uint64(reads))
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
		before += run.Order.Samples * uint64(run.Epochs)
		affinity := "none"
		if run.Affinity {
			affinity = "node"
		}
		for number, of := range epochs {
			all = append(all, simulatedNodes{affinity, run.Policy, sizes[k], number + 1, run.Order.Samples, of})
		}
		last = append(last, all[len(all)-1])
	}
	return all, last, nil
}
