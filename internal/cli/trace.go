package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/timeline"
)

var epochColumns = table.Columns[*timeline.Epoch]{
	table.Shown("rank", "rank", "of the loader", func(e *timeline.Epoch) any { return e.Loader.Rank }),
	table.Shown("epoch", "epoch", "its number", func(e *timeline.Epoch) any { return known(e.Number) }),
	table.Shown("seconds", "time", "of the training loop, from its first wait to its last step",
		func(e *timeline.Epoch) any { return table.Duration(e.Seconds()) }),
	table.Shown("batches", "batches", "that it got", func(e *timeline.Epoch) any { return table.Count(e.Batches) }),
	table.Shown("samples", "samples", "in these batches",
		func(e *timeline.Epoch) any { return table.Count(e.Samples) }),
	table.Shown("samples_per_second", "samples/s", "that it got in this time",
		func(e *timeline.Epoch) any { return table.PerSecond(e.Rate()) }),
	table.Shown("hit_rate", "hit rate", "of these samples, from the cache",
		func(e *timeline.Epoch) any { return table.Ratio(e.HitRate()) }),
	table.Shown("waiting", "waiting", "part of the time in which the training loop waited for the loader",
		func(e *timeline.Epoch) any { return table.Percent(e.Waiting()) }),
	table.Shown("workers", "workers", "that loaded samples", func(e *timeline.Epoch) any { return e.Workers }),
	table.Shown("workers_busy", "busy", "part of the time in which they loaded, on average",
		func(e *timeline.Epoch) any { return table.If(e.Workers != 0, table.Percent(e.Busy)) }),
	table.InJSON("step_seconds", "time in which the training loop had a batch",
		func(e *timeline.Epoch) any { return table.Duration(e.Step) }),
	table.InJSON("wait_seconds", "time in which it waited for a batch",
		func(e *timeline.Epoch) any { return table.Duration(e.Wait) }),
	table.InJSON("first_batch_seconds", "of these, until the epoch's first batch",
		func(e *timeline.Epoch) any { return table.Duration(e.First) }),
	table.InJSON("longest_load_seconds", "the longest load of a sample",
		func(e *timeline.Epoch) any { return table.Duration(e.LongestLoad) }),
}

// stage is a part of the way of a batch, with its times.
type stage struct {
	name       string
	work, wait float64
	epoch      *timeline.Epoch
}

var stageColumns = table.Columns[stage]{
	table.Shown("stage", "stage",
		"load: misses; augment: the random part of samples (augment=); delay: samples waited for a processor; "+
			"fetch: requests to a server; gather: hits were copied and batches assembled; batch_augment: that function ran; "+
			"transfer: to pinned memory or a device; other: not recorded",
		func(s stage) any { return s.name }),
	table.Shown("work_seconds", "work",
		"time for all samples of the epoch, summed over all threads and processes",
		func(s stage) any { return table.Duration(s.work) }),
	table.Shown("wait_seconds", "waited for", "time in which the training loop waited for it",
		func(s stage) any { return table.Duration(s.wait) }),
	table.Shown("wait_share", "of the time", "the same, as a part of the training loop's time",
		func(s stage) any { return table.Percent(s.wait / s.epoch.Seconds()) }),
}

func stagesOf(e *timeline.Epoch) []stage {
	nothing := math.NaN()
	return []stage{
		{"load", e.Work.Load, e.WaitFor.Load, e}, {"augment", e.Work.Augment, e.WaitFor.Augment, e},
		{"delay", e.Work.Delay, e.WaitFor.Delay, e}, {"fetch", e.Work.Fetch, e.WaitFor.Fetch, e},
		{"gather", e.Work.Gather, e.WaitFor.Gather, e},
		{"batch_augment", e.Work.BatchAugment, e.WaitFor.BatchAugment, e},
		{"transfer", e.Work.Transfer, e.WaitFor.Transfer, e}, {"other", nothing, e.WaitFor.Other, e},
	}
}

var useColumns = table.Columns[timeline.Use]{
	table.Shown("rank", "rank", "of the loader", func(u timeline.Use) any { return u.Loader.Rank }),
	table.Shown("track", "track", "thread or process of these spans", func(u timeline.Use) any { return u.Track.Name }),
	table.Shown("spans", "spans", "number of spans", func(u timeline.Use) any { return table.Count(u.Spans) }),
	table.Shown("busy_seconds", "busy", "time in spans; of the training loop: in steps",
		func(u timeline.Use) any { return table.Duration(u.Busy) }),
	table.Shown("busy_share", "of the time", "the same, as a part of the epoch",
		func(u timeline.Use) any { return table.Percent(u.Share) }),
}

var slowColumns = table.Columns[timeline.Slow]{
	table.Shown("index", "sample", "index of the sample", func(s timeline.Slow) any { return known(s.Span.Index) }),
	table.Shown("seconds", "took", "duration of its load",
		func(s timeline.Slow) any { return table.Duration(float64(s.Span.Length()) / 1e9) }),
	table.Shown("epoch", "epoch", "of the load", func(s timeline.Slow) any { return known(s.Span.Epoch) }),
	table.Shown("batch", "batch", "of the sample",
		func(s timeline.Slow) any { return known(s.Span.Batch) }),
	table.Shown("rank", "rank", "of the loader", func(s timeline.Slow) any { return s.Loader.Rank }),
	table.Shown("worker", "worker", "that loaded it", func(s timeline.Slow) any { return s.Track.Name }),
}

// known is a number of a span; nil: it is unknown.
func known[T int | int32 | int64](n T) any { return table.If(n >= 0, n) }

const slowest = 5

func newTrace() *cobra.Command {
	var asJSON bool
	var p part
	var out string
	c := &cobra.Command{
		Use:   "trace FILE...",
		Short: "Show where the time of a training loop went, merge the files of ranks, and draw them",
		Long: paragraphs(`Reads what a loader recorded with trace="FILE" (docs/spec/trace.md): steps and waits of the training loop,
gathers, transfers, and which worker loaded which sample when. It prints where the time went, for the last
epoch of the rank that waits most; stocached advise says what would help. It puts several files, such as
those of the ranks of a job, on one time line.

With -o FILE it also draws. FILE.html is one page to zoom and to inspect single spans, of all epochs or of
one chosen on the page, without a network. FILE.json has all that was read, as one file for ui.perfetto.dev
or this command.`,
			epochColumns.Explain("EPOCHS, a line for each (epochs)"),
			stageColumns.Explain("WHERE THE TIME WENT, of that epoch (stages)"),
			useColumns.Explain("TRACKS, during that epoch (tracks)"),
			slowColumns.Explain("SLOWEST SAMPLES, of all epochs (slowest)"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Example: `  stocached trace run.json
  stocached trace run.json --epoch 1 -o run.html
  stocached trace run.json --from 2.5 --to 3 -o run.html
  stocached trace rank0.json rank1.json -o job.json`,
		Args: arguments(1, -1, "the file of a trace, or several"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"json", "gz"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(c *cobra.Command, args []string) error {
			draw, err := drawing(out)
			if err != nil {
				return err
			}
			t, err := readTraces(args)
			if err != nil {
				return err
			}
			p.epochSet, p.fromSet, p.toSet = c.Flags().Changed("epoch"), c.Flags().Changed("from"),
				c.Flags().Changed("to")
			from, to, err := p.bounds(t)
			if err != nil {
				return err
			}
			r := newReport(t, &p)
			r.complain(c.ErrOrStderr())
			if asJSON {
				err = table.WriteJSON(c.OutOrStdout(), r.object())
			} else {
				err = r.print(c.OutOrStdout())
			}
			if err != nil || draw == nil {
				return err
			}
			if err := writeFile(out, func(w io.Writer) error { return draw(w, t, from, to) }); err != nil {
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "%s written\n", out)
			return nil
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "file to draw into: .html or .json")
	c.Flags().IntVar(&p.epoch, "epoch", 0,
		"analyse this epoch, and draw only this one (default: analyse the last one, draw all)")
	c.Flags().Float64Var(&p.from, "from", 0, "draw from this second of the trace, or of the epoch, on")
	c.Flags().Float64Var(&p.to, "to", 0, "draw to this second (default: the end)")
	for _, flag := range []string{"epoch", "from", "to"} {
		must(c.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	must(c.MarkFlagFilename("output", "html", "json"))
	jsonFlag(c, &asJSON)
	return c
}

// part is the part of a trace to analyse and draw.
type part struct {
	epoch                    int
	from, to                 float64
	epochSet, fromSet, toSet bool
}

// bounds returns the moments to draw from and to, in nanoseconds.
func (p *part) bounds(t *timeline.Trace) (from, to int64, err error) {
	from, to = t.Bounds()
	if p.epochSet {
		var ok bool
		if from, to, ok = t.Epoch(p.epoch); !ok {
			return 0, 0, usage("the trace has no epoch %d; it has %s", p.epoch, epochNumbers(t))
		}
	}
	begin, end := from, to
	if p.fromSet {
		from = begin + int64(p.from*1e9)
	}
	if p.toSet {
		to = begin + int64(p.to*1e9)
	}
	if from < begin || from >= to && to != begin || to > end+1e9 || math.IsNaN(p.from) || math.IsNaN(p.to) {
		return 0, 0, usage("--from %g --to %g: there are %.3f seconds to choose from", float64(from-begin)/1e9,
			float64(to-begin)/1e9, float64(end-begin)/1e9)
	}
	return from, to, nil
}

func epochNumbers(t *timeline.Trace) string {
	var numbers []int
	for _, e := range t.Epochs() {
		if e.Number >= 0 && !slices.Contains(numbers, e.Number) {
			numbers = append(numbers, e.Number)
		}
	}
	if len(numbers) == 0 {
		return "none with a number"
	}
	slices.Sort(numbers)
	return fmt.Sprintf("%d to %d", numbers[0], numbers[len(numbers)-1])
}

func readTraces(paths []string) (*timeline.Trace, error) {
	traces := make([]*timeline.Trace, len(paths))
	for k, path := range paths {
		var err error
		if traces[k], err = timeline.ReadFile(path); err != nil {
			return nil, err
		}
	}
	if len(traces) == 1 {
		return traces[0], nil
	}
	t, err := timeline.Merge(traces...)
	if err != nil {
		return nil, usageError{err}
	}
	return t, nil
}

type drawer func(w io.Writer, t *timeline.Trace, from, to int64) error

// drawing chooses the format by the ending of the file's name; nil for no file.
func drawing(path string) (drawer, error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".html":
		return timeline.HTML, nil
	case ".json":
		return func(w io.Writer, t *timeline.Trace, _, _ int64) error { return timeline.Write(w, t) }, nil
	}
	if path == "" {
		return nil, nil
	}
	return nil, usage("-o %s: the name must end in .html or .json", path)
}

// writeFile writes a file completely or not at all.
func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err = write(f); err != nil {
		f.Close()
		return err
	}
	if err = errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// report is where the time of a trace went.
type report struct {
	trace  *timeline.Trace
	epochs []*timeline.Epoch
	about  *timeline.Epoch // the epoch that the rest is about; nil: the trace has none
	stages []stage
	uses   []timeline.Use
	slow   []timeline.Slow // slow spans of all epochs
}

func newReport(t *timeline.Trace, p *part) *report {
	r := &report{trace: t, epochs: t.Epochs(), slow: t.Slowest(slowest)}
	choice := r.epochs
	if p.epochSet {
		choice = slices.DeleteFunc(slices.Clone(choice), func(e *timeline.Epoch) bool { return e.Number != p.epoch })
	}
	if r.about = timeline.Typical(choice); r.about != nil {
		r.stages, r.uses = stagesOf(r.about), t.Uses(r.about.From, r.about.To)
	}
	return r
}

// complain says which spans are missing.
func (r *report) complain(stderr io.Writer) {
	for _, l := range r.trace.Loaders {
		if l.Dropped > 0 && l.DroppedFrom != nil {
			complain(stderr, fmt.Sprintf("%s: %s spans were beyond the recorder's limit and are missing: the "+
				"figures end %.3f s after its start", l.Name(), table.Count(l.Dropped), *l.DroppedFrom/1e6))
		}
	}
}

func (r *report) object() (o table.Object) {
	o.Add("epochs", epochColumns.Objects(r.epochs))
	o.Add("about", aboutObject(r.about))
	o.Add("stages", stageColumns.Objects(r.stages))
	o.Add("tracks", useColumns.Objects(r.uses))
	o.Add("slowest", slowColumns.Objects(r.slow))
	return o
}

// print writes the report for people.
func (r *report) print(stdout io.Writer) error {
	about := r.about
	if about == nil {
		fmt.Fprintf(stdout, "%s spans, none of them a step or wait of a training loop: the trace does not say where "+
			"its time went\n", table.Count(r.trace.Spans()))
		return nil
	}
	if err := epochColumns.Within(stdout, r.epochs, room(stdout)); err != nil {
		return err
	}
	which := ""
	if len(r.epochs) > 1 {
		which = " of epoch " + table.Text(known(about.Number))
		if len(r.trace.Loaders) > 1 {
			which += fmt.Sprintf(", rank %d, which waits most", about.Loader.Rank)
		}
	}
	told := fmt.Sprintf("The training loop was busy with steps for %v (%v), and waited %v (%v), of which %v for its "+
		"first batch.", table.Duration(about.Step), table.Percent(1-about.Waiting()), table.Duration(about.Wait),
		table.Percent(about.Waiting()), table.Duration(about.First))
	fmt.Fprintf(stdout, "\nWHERE THE TIME WENT%s\n%s", which, inLines(stdout, "", told))
	there := slices.DeleteFunc(slices.Clone(r.stages), func(s stage) bool { return s.work == 0 && s.wait == 0 })
	if err := stageColumns.Table(stdout, there); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nTRACKS\n")
	if err := useColumns.Within(stdout, r.uses, room(stdout)); err != nil {
		return err
	}
	if len(r.slow) > 0 {
		fmt.Fprintf(stdout, "\nSLOWEST SAMPLES\n")
		if err := slowColumns.Table(stdout, r.slow); err != nil {
			return err
		}
	}
	return nil
}

func aboutObject(e *timeline.Epoch) any {
	if e == nil {
		return nil
	}
	var o table.Object
	o.Add("rank", e.Loader.Rank)
	o.Add("epoch", known(e.Number))
	return o
}
