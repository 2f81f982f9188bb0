package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
)

// point is a place on the curve of a cache.
type point struct {
	*advise.Curve
	part float64
}

var pointColumns = table.Columns[point]{
	table.Shown("bytes", "memory", "for samples, without the tables of the cache",
		func(p point) any { return table.Bytes(p.Bytes(p.part)) }),
	table.Shown("cached_fraction", "cached", "part of the samples that it holds",
		func(p point) any { return table.Ratio(p.part) }),
	table.Shown("first_come_seconds", "first-come",
		"time of an epoch with the policy first-come: a straight line of loads", epochWith(advise.FirstCome)),
	table.Shown("cost_seconds", "cost", "time of an epoch with the policy cost, as the simulator predicts",
		epochWith(advise.Cost)),
	table.Shown("ideal_seconds", "ideal", "with the costliest samples that fit, which no policy knows beforehand",
		epochWith(advise.Ideal)),
	table.Shown("limit", "limit", "of an epoch with the policy cost: what more or faster of would make it shorter",
		func(p point) any { _, limit := p.Epoch(advise.Cost, p.part); return limit }),
}

// epochWith is the time of an epoch with a policy.
func epochWith(policy advise.Policy) func(point) any {
	return func(p point) any { seconds, _ := p.Epoch(policy, p.part); return table.Duration(seconds) }
}

// adviseColumns are about the whole curve.
var adviseColumns = table.Columns[*advise.Curve]{
	table.InJSON("name", "of the cache or of the run", func(c *advise.Curve) any { return c.Name }),
	table.InJSON("samples", "of the dataset", func(c *advise.Curve) any { return table.Count(c.Samples) }),
	table.InJSON("sample_bytes", "of each, or their mean",
		func(c *advise.Curve) any { return table.Bytes(c.SampleBytes) }),
	table.InJSON("known_costs", "samples whose load was measured",
		func(c *advise.Curve) any { return table.Count(len(c.Seconds)) }),
	table.InJSON("load_seconds", "to load all samples of an epoch, summed over all workers",
		func(c *advise.Curve) any { return table.Duration(c.Load) }),
	table.InJSON("source_share", "part of that time in which loads wait for their source, such as a disk; the rest is "+
		"decoding; null: unknown", func(c *advise.Curve) any { return c.Pace.Source }),
	table.InJSON("workers", "that load side by side; 0: the training loop loads",
		func(c *advise.Curve) any { return c.Pace.Workers }),
	table.InJSON("policy", "of the cache; null: unknown", func(c *advise.Curve) any { return orNone(c.Today.Policy) }),
	table.InJSON("today_bytes", "memory of the samples that are cached now",
		func(c *advise.Curve) any { return table.Bytes(c.Bytes(c.Today.Part)) }),
	table.InJSON("today_seconds", "time of an epoch with them, as measured",
		func(c *advise.Curve) any { return table.Duration(c.Measured()) }),
	table.InJSON("today_first_come_seconds", "the same, as predicted for first-come",
		func(c *advise.Curve) any { return epochWith(advise.FirstCome)(point{c, c.Today.Part}) }),
	table.InJSON("today_cost_seconds", "the same, as predicted for cost",
		func(c *advise.Curve) any { return epochWith(advise.Cost)(point{c, c.Today.Part}) }),
	table.InJSON("next_bytes", "the next GiB, or what is missing if that is less",
		func(c *advise.Curve) any { return table.Bytes(c.GiB().Bytes) }),
	table.InJSON("next_first_come_seconds", "that it makes an epoch shorter, with first-come",
		func(c *advise.Curve) any { return table.Duration(c.GiB().Seconds[advise.FirstCome]) }),
	table.InJSON("next_cost_seconds", "that it makes an epoch shorter, with cost",
		func(c *advise.Curve) any { return table.Duration(c.GiB().Seconds[advise.Cost]) }),
	table.InJSON("enough_first_come_bytes", "memory beyond which more does not help, with first-come",
		enough(advise.FirstCome)),
	table.InJSON("enough_cost_bytes", "the same, with cost", enough(advise.Cost)),
	table.InJSON("limits", "name and seconds of what runs beside loads", func(c *advise.Curve) any {
		return limitColumns.Objects(c.Pace.Limits)
	}),
	table.InJSON("points", "of the curve: see below", func(c *advise.Curve) any {
		return pointColumns.Objects(points(c, advise.Steps))
	}),
	table.InJSON("waits", "of a run, name and seconds of what its training loop waited for: see below", func(c *advise.Curve) any {
		return limitColumns.Objects(c.Waits())
	}),
	table.InJSON("waiting", "of a run, part of the time in which its training loop waited; null: there is no run",
		func(c *advise.Curve) any {
			if c.Run == nil {
				return nil
			}
			return table.Ratio(c.Run.Waiting())
		}),
	table.InJSON("notes", "what the measurements do not say",
		func(c *advise.Curve) any { return table.List[string](c.Notes) }),
}

var limitColumns = table.Columns[advise.Limit]{
	table.InJSON("name", "of what takes so long", func(l advise.Limit) any { return l.Name }),
	table.InJSON("seconds", "of an epoch", func(l advise.Limit) any { return table.Duration(l.Seconds) }),
}

// tryColumns are what to change. They stand beside adviseColumns, because --size changes them.
var tryColumns = table.Columns[advise.Try]{
	table.InJSON("kind", "its subject: see below", func(t advise.Try) any { return t.Kind }),
	table.InJSON("setting", "what to change", func(t advise.Try) any { return t.Setting }),
	table.InJSON("seconds", "time of an epoch then; null: unknown", func(t advise.Try) any { return table.Duration(t.Seconds) }),
	table.InJSON("why", "more about it", func(t advise.Try) any { return t.Why }),
}

// explainTries has the kinds of tries.
func explainTries() string {
	var b strings.Builder
	b.WriteString("KINDS OF TRIES:")
	for _, k := range advise.Kinds {
		fmt.Fprintf(&b, "\n  %-8s  %s", k.Kind, k.Help)
	}
	return b.String()
}

func enough(policy advise.Policy) func(*advise.Curve) any {
	return func(c *advise.Curve) any { return table.Bytes(c.Bytes(c.Enough(policy))) }
}

// points returns places at equal steps.
func points(c *advise.Curve, steps int) (all []point) {
	for k := range steps + 1 {
		all = append(all, point{c, float64(k) / float64(steps)})
	}
	return all
}

type adviseFlags struct {
	dir         dirFlag
	sockets     socketsFlag
	workers     int
	step        time.Duration
	source      float64
	sampleBytes size
	memory      size
	pace        string
	seed        uint64
	json        bool
}

func newAdvise() *cobra.Command {
	f := &adviseFlags{}
	c := &cobra.Command{
		Use:   "advise NAME|run.json|config.yaml",
		Short: "Say where the time of a training loop goes, and what to try: workers, memory",
		Long: paragraphs(`Says what a training loop waits for, and what to try, from measured loads: other numbers of workers, and
memory. Its curve is the time of an epoch with more or less memory, with the policies first-come and cost.
It shows where the cache is on it today, what the next GiB buys, and where more memory stops helping.`,
			`NAME is a cache, which keeps what loads took. It does not know its training loops: --run has a recorded
run of one of them, or --workers and --step say how many workers load, and how long the training of an epoch
takes. run.json is what a loader recorded with trace="run.json"; it has all of that. For a config.yaml of a
server, the caches that it names are shown; parallel says how many workers load.`,
			`The policy cost is simulated over shuffled epochs with these costs. "ideal" is the best set for each
memory. The time of an epoch is the longest of: loads and augment= divided by the workers, what of it
computes divided by the processors, the training step, gathering, transfers, the server. It leaves out the
wait for the first batch.`,
			pointColumns.Explain("OUTPUT, a line for each tenth of the samples (points)"),
			tryColumns.Explain("TRY, what makes epochs shortest first (tries)"),
			explainTries(),
			`WAITING names read: loads waited for their source; decode: they computed; load: both, if it is unknown
which; augment; processor: workers waited for one; server; gather: hits were copied, batches assembled;
batch_augment; transfer; other: nothing was recorded.`,
			adviseColumns.Explain("WITH --json, an object, for a config.yaml an array"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission, exitVersion)),
		Example: `  stocached advise pets --workers 8 --step 40s
  stocached advise run.json
  stocached advise run.json --size 8GiB --workers 16`,
		Args: arguments(1, 1, "a cache, a recorded run or a configuration"),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			names, _ := f.dir.complete(1, true)(c, args, prefix)
			return names, cobra.ShellCompDirectiveDefault
		},
		RunE: func(c *cobra.Command, args []string) error {
			return f.run(c, args[0])
		},
	}
	f.dir.add(c)
	f.sockets.folder(c)
	flags := c.Flags()
	flags.IntVar(&f.workers, "workers", 0,
		"number of workers that load side by side (default: of a run, as recorded; of a\nconfiguration, its key "+
			"parallel; else 1)\n")
	flags.DurationVar(&f.step, "step", 0, "time of an epoch's training steps (default: of a run, as recorded; else 0)")
	flags.Float64Var(&f.source, "source-share", 0,
		"part of the time of loads in which they wait for the source, from 0 to 1\n(default: of a run, as recorded; "+
			"of a served cache, as its server measured; else unknown)\n")
	flags.Var(&f.sampleBytes, "sample-bytes", "bytes of a sample of a run (default: as recorded)")
	flags.Var(&f.memory, "size", "memory for samples that TRY may use (default: as much as helps)")
	flags.StringVar(&f.pace, "run", "", "a recorded run whose loader read the cache NAME")
	must(c.MarkFlagFilename("run", "json", "gz"))
	flags.Uint64Var(&f.seed, "seed", 0, "of the simulated orders")
	jsonFlag(c, &f.json)
	return c
}

func (f *adviseFlags) run(c *cobra.Command, about string) error {
	given := c.Flags().Changed
	if f.workers < 0 || f.workers == 0 && given("workers") {
		return usage("--workers is %d; there is at least 1", f.workers)
	}
	if f.step < 0 {
		return usage("--step is %v, which is below 0", f.step)
	}
	if !(f.source >= 0 && f.source <= 1) {
		return usage("--source-share is %g, which is not in 0..1", f.source)
	}
	stdout, stderr := c.OutOrStdout(), c.ErrOrStderr()
	isConfig := slices.Contains([]string{".yaml", ".yml"}, strings.ToLower(filepath.Ext(about)))
	all, err := f.data(about, isConfig, stderr)
	if err != nil && !errors.Is(err, errReported) {
		return err
	}
	curves := make([]*advise.Curve, len(all))
	for k, d := range all {
		if f.pace != "" && d.Run == nil {
			t, err := timeline.ReadFile(f.pace)
			if err != nil {
				return err
			}
			if err := d.Lend(filepath.Base(f.pace), t); err != nil {
				return err
			}
		}
		if given("workers") {
			d.Pace.Workers, d.Loop = f.workers, true
		}
		if given("source-share") {
			d.Pace.Source = &f.source
		}
		if given("step") {
			d.Pace.Limits = append([]advise.Limit{{Name: advise.Step, Seconds: f.step.Seconds()}},
				slices.DeleteFunc(d.Pace.Limits, func(l advise.Limit) bool { return l.Name == advise.Step })...)
		}
		var failed error
		if curves[k], failed = advise.New(d, f.seed); failed != nil {
			return failed
		}
	}
	if f.json {
		objects := adviseColumns.Objects(curves)
		for k, curve := range curves {
			objects[k].Add("tries", tryColumns.Objects(curve.Tries(uint64(f.memory))))
		}
		if isConfig {
			return errors.Join(table.WriteJSON(stdout, objects), err)
		}
		return errors.Join(table.WriteJSON(stdout, objects[0]), err)
	}
	for k, curve := range curves {
		if k > 0 {
			fmt.Fprintln(stdout)
		}
		if err := advice(curve, uint64(f.memory), stdout, stderr); err != nil {
			return err
		}
	}
	return err
}

// data reads what an argument names. It reports the caches of a configuration that it cannot read on
// stderr, and returns the first error.
func (f *adviseFlags) data(about string, isConfig bool, stderr io.Writer) (all []*advise.Data, first error) {
	switch {
	case isConfig:
		return f.configured(about, stderr)
	case f.isRun(about):
		t, err := timeline.ReadFile(about)
		if err != nil {
			return nil, err
		}
		d, err := advise.Run(filepath.Base(about), t, uint64(f.sampleBytes))
		return []*advise.Data{d}, err
	}
	d, err := f.cache(&f.dir, f.sockets, about)
	return []*advise.Data{d}, err
}

// isRun says whether an argument is a file of a recorder: by its name, or, of a path, by its content.
func (f *adviseFlags) isRun(about string) bool {
	if slices.Contains([]string{".json", ".gz"}, strings.ToLower(filepath.Ext(about))) {
		return true
	}
	if !strings.Contains(about, "/") {
		return false
	}
	file, err := os.Open(about)
	if err != nil {
		return false
	}
	defer file.Close()
	begin := make([]byte, len(shm.Magic))
	n, _ := io.ReadFull(file, begin)
	return string(begin[:n]) != shm.Magic
}

func (f *adviseFlags) cache(dir *dirFlag, sockets socketsFlag, name string) (d *advise.Data, err error) {
	err = dir.with(name, func(seg *shm.Segment, reader *cache.Cache) error {
		if d, err = advise.Cache(displayName(&seg.Header, seg.Path()), seg, reader); err != nil {
			return err
		}
		d.Pace.CPUs = runtime.NumCPU()
		return askServer(d, seg, sockets)
	})
	return d, err
}

// askServer adds what the server of a cache knows: for which part of its loads it waited for the source. Without
// an answer, it adds a note.
func askServer(d *advise.Data, seg *shm.Segment, sockets socketsFlag) error {
	probe, err := seg.ProbeLocks()
	if err != nil || !probe.Server {
		return err
	}
	asker := asker{sockets: sockets}
	server, err := asker.ask(d.Name, fmt.Sprintf("%x", seg.Header.UUID))()
	switch {
	case err != nil:
		d.Notes = append(d.Notes, fmt.Sprintf("%s: %v. So it is unknown whether loads wait for the source", d.Name, err))
	case server.Load > 0 && server.Store != "encoded": // there, clients decode
		share := min(server.Stats.Source/server.Load, 1)
		d.Pace.Source = &share
	}
	return nil
}

// configured reads the caches that a configuration names.
func (f *adviseFlags) configured(path string, stderr io.Writer) (all []*advise.Data, err error) {
	configuration, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	sockets := socketsFlag{dir: cmp.Or(f.sockets.dir, configuration.SocketsDir())}
	failed := failures{stderr: stderr}
	for _, c := range configuration.Caches {
		dir := dirFlag{cmp.Or(f.dir.dir, c.Dir)}
		var d *advise.Data
		err := fmt.Errorf("%w: cache %s of the configuration has no name in a folder; stocached ls shows it",
			shm.ErrNotFound, c.Name)
		if !c.Unnamed {
			d, err = f.cache(&dir, sockets, c.Name)
		}
		if err != nil {
			failed.add(err)
			continue
		}
		d.Pace.Workers = cmp.Or(c.Parallel, d.Pace.Workers)
		all = append(all, d)
	}
	return all, failed.first
}

// sourceText says what loads do.
func sourceText(c *advise.Curve) string {
	if c.Pace.Source == nil {
		return ""
	}
	return fmt.Sprintf(", %.0f %% of it waits for the source", *c.Pace.Source*100)
}

// advice prints the curve for people.
func advice(c *advise.Curve, memory uint64, stdout, stderr io.Writer) error {
	for _, note := range c.Notes {
		complain(stderr, note)
	}
	rows := points(c, 10)
	today := point{c, c.Today.Part}
	at, found := slices.BinarySearchFunc(rows, today, func(a, b point) int { return cmp.Compare(a.part, b.part) })
	if !found {
		rows = slices.Insert(rows, at, today)
	}
	fmt.Fprintf(stdout, "%s: %s samples of %s, together %s.\nTheir loads take %v%s.\n\n", c.Name, table.Count(c.Samples),
		table.Bytes(c.SampleBytes), table.Bytes(c.Bytes(1)), table.Duration(c.Load), sourceText(c))
	if err := pointColumns.Within(stdout, rows, room(stdout)); err != nil {
		return err
	}
	width, _ := terminalSize(stdout)
	_, err := io.WriteString(stdout, adviceChart(c, rows, at, width)+adviceText(stdout, c, memory))
	return err
}

// adviceChart draws a bar of the epoch with the policy cost for each row, with a mark at that of
// first-come.
func adviceChart(c *advise.Curve, rows []point, today, width int) string {
	var b strings.Builder
	b.WriteString("\nTIME OF AN EPOCH with cost (bar) and with first-come (mark)\n")
	labels := make([]string, len(rows))
	label := 0
	for k, r := range rows {
		if labels[k] = fmt.Sprint(table.Bytes(r.Bytes(r.part))); k == today {
			labels[k] = "today " + labels[k]
		}
		label = max(label, utf8.RuneCountInString(labels[k]))
	}
	longest, _ := c.Epoch(advise.FirstCome, 0)
	wide := max(width-label-2, 10)
	columns := func(policy advise.Policy, part float64) int {
		seconds, _ := c.Epoch(policy, part)
		return int(math.Round(seconds / longest * float64(wide)))
	}
	for k, r := range rows {
		text := fmt.Sprintf("%*s  %s", label, labels[k], barOf(wide, columns(advise.Cost, r.part),
			columns(advise.FirstCome, r.part)-1))
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	return b.String()
}

// adviceText says what was waited for, where the cache is, what more memory buys, and what to try.
func adviceText(stdout io.Writer, c *advise.Curve, memory uint64) string {
	var b strings.Builder
	b.WriteByte('\n')
	line := func(about, format string, args ...any) {
		b.WriteString(inLines(stdout, fmt.Sprintf("%-10s ", about), fmt.Sprintf(format, args...)))
	}
	if c.Run != nil {
		line("WAITING", "%v of the time: %s", table.Percent(c.Run.Waiting()), c.WaitsText())
	}
	today := point{c, c.Today.Part}
	of := "the samples"
	if c.Sizes != nil {
		of = "the bytes of all samples"
	}
	how := "measured"
	if c.Today.Seconds == 0 { // from the measured loads
		if how = "computed"; c.Today.Simulated {
			how = "simulated with " + c.Today.Policy
		}
	}
	line("TODAY", "%v hold %v of %s; an epoch takes %v (%s)", table.Bytes(c.Bytes(today.part)),
		table.Percent(today.part), of, table.Duration(c.Measured()), how)
	line("predicted", "%v with cost, %v with first-come", epochWith(advise.Cost)(today),
		epochWith(advise.FirstCome)(today))
	if c.Today.Room > c.Today.Part {
		line("", "the cache is not full: it has room for %v of %s; ask again when it is full",
			table.Percent(c.Today.Room), of)
	}
	switch next := c.GiB(); next.Bytes {
	case 0:
		line("MORE", "memory buys nothing: all samples are cached")
	default:
		about := "THE REST"
		if next.Bytes == 1<<30 {
			about = "THE NEXT"
		}
		line(about, "%v makes an epoch %v shorter with cost, %v with first-come", table.Bytes(next.Bytes),
			table.Duration(next.Seconds[advise.Cost]), table.Duration(next.Seconds[advise.FirstCome]))
	}
	cost, firstCome := c.Bytes(c.Enough(advise.Cost)), c.Bytes(c.Enough(advise.FirstCome))
	amount := func(bytes uint64) string {
		text, all := fmt.Sprint(table.Bytes(bytes)), fmt.Sprint(table.Bytes(c.Bytes(1)))
		if text == all {
			return "all " + all
		}
		return text
	}
	switch {
	case firstCome == 0:
		line("ENOUGH", "no memory: loads are not the limit")
	case amount(cost) == amount(firstCome):
		line("ENOUGH", "%s", amount(cost))
	default:
		line("ENOUGH", "%s with cost, %s with first-come", amount(cost), amount(firstCome))
	}
	var limits []string
	about, loaded := "", c.Pace.Loaded()
	if _, limit := c.Epoch(advise.FirstCome, 0); firstCome > 0 {
		limits, about = append(limits, limit+" up to that"), "beyond it "
	}
	for _, l := range loaded[:min(len(loaded), 2)] {
		limits = append(limits, fmt.Sprintf("%s%s, %v", about, l.Name, table.Duration(l.Seconds)))
		about = "next "
	}
	line("LIMIT", "%s", strings.Join(limits, "; "))
	about = "TRY"
	for _, t := range c.Tries(memory) {
		text := t.Setting
		if t.Seconds < 0.97*c.Measured() {
			text += fmt.Sprintf(": an epoch takes %v in place of %v", table.Duration(t.Seconds), table.Duration(c.Measured()))
		}
		if t.Why != "" {
			text += "; " + t.Why
		}
		line(about, "%s", text)
		about = ""
	}
	return b.String()
}
