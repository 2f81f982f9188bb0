package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	imagesource "github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/kinds"
)

// sourceFlags say what SRC in a command line is.
type sourceFlags struct {
	kind   string
	set    []string
	decode []string
}

func (f *sourceFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.kind, "kind", "", "kind of SRC: "+strings.Join(kindNames(), ", ")+
		" (default: by its name, see above)")
	c.Flags().StringArrayVar(&f.set, "source", nil,
		"settings of SRC as key=value,...: those of its kind, and limits, retry, read_ahead; repeatable")
	c.Flags().StringArrayVar(&f.decode, "decode", nil,
		"decode images, with settings as key=value,...: resize, fit, layout, field, max_pixels, "+
			"memory, bad_samples, store; repeatable")
	if err := c.RegisterFlagCompletionFunc("kind",
		cobra.FixedCompletions(kindNames(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// sourceHelp explains SRC in help texts.
const sourceHelp = `SRC is a path. Its name tells the kind of source. A folder with a dataset.json is a dataset in block files
(block). Any other folder is a tree of files, one sample each (dir). A .npy file is an array (npy). A .tar
file, or a pattern of such names, is tar shards (tar). Anything else needs --kind. --source gives the
settings of that kind, as in a configuration:
  --source 'glob=**/*.jpg,labels=folders'
  --kind raw --source 'shape=[3,224,224],dtype=float32'
--decode decodes the samples as a server does:
  --decode 'resize=[224,224],fit=crop'
docs/spec/sources.md explains all settings. A value is a number, true or false, a list such as [jpg, cls],
a mapping such as {tries: 5}, or a text; "..." makes any value a text. kinds:
`

func kindNames() []string {
	var names []string
	for _, k := range kinds.All {
		names = append(names, k.Name)
	}
	return names
}

// explainKinds lists the kinds with what they read.
func explainKinds() string {
	lines := make([]string, len(kinds.All))
	for i, k := range kinds.All {
		lines[i] = fmt.Sprintf("  %-6s %s", k.Name, k.Doc)
	}
	return sourceHelp + strings.Join(lines, "\n")
}

// settings returns the settings of a source: its path and the flags.
func (f *sourceFlags) settings(path string) (source.Settings, error) {
	s := source.Settings{"path": path}
	for _, text := range f.set {
		if err := parseSettings(s, text); err != nil {
			return nil, err
		}
	}
	switch {
	case f.kind != "":
		s["kind"] = f.kind
	case s["kind"] == nil:
		kind, err := guessKind(path)
		if err != nil {
			return nil, err
		}
		s["kind"] = kind
	}
	return s, nil
}

func (f *sourceFlags) open(ctx context.Context, path string) (source.Source, error) {
	s, err := f.settings(path)
	if err != nil {
		return nil, err
	}
	var decoded map[string]any
	for _, text := range f.decode {
		if decoded == nil {
			decoded = map[string]any{}
		}
		if err := parsePairs(decoded, "--decode", text); err != nil {
			return nil, err
		}
	}
	opened, _, err := kinds.Whole(ctx, kinds.Open, s, decoded)
	return opened, err
}

// guessKind finds the kind of a source by its path.
func guessKind(path string) (string, error) {
	st, err := os.Stat(path)
	base := filepath.Base(path)
	remote := source.IsRemote(path)
	switch {
	case err == nil && st.IsDir():
		if _, err := os.Stat(filepath.Join(path, "dataset.json")); err == nil {
			return "block", nil
		}
		return "dir", nil
	case strings.HasSuffix(base, ".tar"), strings.HasSuffix(base, ".tar.gz"),
		strings.HasSuffix(base, ".tgz"): // no file has the name of a pattern of shards
		return "tar", nil
	case remote && filepath.Ext(base) == "": // a folder; block files name their kind by --kind
		return "dir", nil
	case err != nil && !remote:
		return "", err
	case base == "dataset.json" || strings.HasSuffix(base, ".stocblk"):
		return "", usage("%s is a part of a dataset in block files: give its folder", path)
	case strings.HasSuffix(base, ".npy"):
		return "npy", nil
	}
	return "", usage("%s: its name does not say what kind of source it is; give --kind, and its settings by "+
		"--source, such as --kind raw --source sample_bytes=150528", path)
}

// parseSettings adds the settings of a --source flag.
func parseSettings(into source.Settings, text string) error {
	return parsePairs(into, "--source", text)
}

// parsePairs adds "key=value,..." of a flag to settings. A comma within brackets, braces or quotes
// is part of the value.
func parsePairs(into map[string]any, flag, text string) error {
	for _, part := range splitSettings(text) {
		key, value, ok := strings.Cut(part, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return usage("%s %q: %q is not key=value", flag, text, part)
		}
		if _, twice := into[key]; twice && key != "path" {
			return usage("%s %q: %s comes twice", flag, text, key)
		}
		into[key] = parseSetting(value)
	}
	return nil
}

func splitSettings(text string) (parts []string) {
	depth, quoted, from := 0, false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth <= 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

// parseSetting reads a value: JSON, with whole numbers as int; or a list or mapping of plain words
// as in YAML, [a, b] and {a: b}; or else the text itself.
func parseSetting(text string) any {
	if v, ok := parseJSON(text); ok {
		return v
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			list := []any{}
			for _, part := range splitSettings(inner) {
				list = append(list, parseSetting(strings.TrimSpace(part)))
			}
			return list
		}
	}
	if inner, ok := strings.CutPrefix(text, "{"); ok {
		if inner, ok = strings.CutSuffix(inner, "}"); ok {
			mapping := map[string]any{}
			for _, part := range splitSettings(inner) {
				key, value, ok := strings.Cut(part, ":")
				if !ok {
					return text
				}
				mapping[strings.TrimSpace(key)] = parseSetting(strings.TrimSpace(value))
			}
			return mapping
		}
	}
	return text
}

func parseJSON(text string) (any, bool) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || v == nil {
		return nil, false
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, false
	}
	return plain(v), true
}

// plain turns numbers of JSON into Go numbers.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 0); err == nil {
			return int(n)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for k := range v {
			v[k] = plain(v[k])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return v
}

func newSource() *cobra.Command {
	c := &cobra.Command{
		Use:   "source",
		Short: "Inspect a source of samples: info, cat, verify",
		Long: paragraphs(`Inspects a source by itself, without a cache: what a server would read from it.`, `SOURCES`,
			explainKinds(), `With --json each prints one object.`, exitStatus()),
		Args:              arguments(0, 0, "info, cat or verify first"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return usage("source needs info, cat or verify") },
	}
	c.AddCommand(newSourceInfo(), newSourceCat(), newSourceVerify())
	return c
}

// filesFirst completes only the first argument, as a file.
func filesFirst(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// described is what info prints.
type described struct {
	source.Info
	path            string
	bytes           any // of all samples, byteCount; nil: unknown
	smallest, large any // likewise, of a sample
	blocks          any // count; nil: the samples are not in blocks
	source          source.Source
}

// packed returns a fact about a dataset in block files; nil for another source.
func (d described) packed(fact func(*block.Dataset) any) any {
	if set, ok := d.source.(*block.Dataset); ok {
		return fact(set)
	}
	return nil
}

var infoColumns = table.Columns[described]{
	table.Listed("path", "path", "as given", func(d described) any { return d.path }),
	table.Listed("kind", "kind", "of the source", func(d described) any { return d.Kind }),
	table.Listed("samples", "samples", "of the dataset", func(d described) any { return table.Count(d.Samples) }),
	table.Listed("variable", "variable size", "samples differ in size",
		func(d described) any { return d.Schema.Variable }),
	table.Listed("bytes", "all samples", "their bytes together, as a cache would hold them",
		func(d described) any { return d.bytes }),
	table.Listed("smallest_bytes", "smallest", "bytes of the smallest sample",
		func(d described) any { return d.smallest }),
	table.Listed("largest_bytes", "largest", "bytes of the largest sample", func(d described) any { return d.large }),
	table.Listed("blocks", "blocks", "that samples are stored in; none: each is read by itself",
		func(d described) any { return d.blocks }),
	table.Listed("compression", "compression", "of a dataset in block files: none or zstd", func(d described) any {
		return d.packed(func(set *block.Dataset) any { return string(set.Description().Compression) })
	}),
	table.Listed("file_bytes", "files", "of a dataset in block files: bytes of these together", func(d described) any {
		return d.packed(func(set *block.Dataset) any { _, n := set.Files(); return table.Bytes(n) })
	}),
	table.Listed("made_from", "made from", "of a dataset in block files: fingerprint of its source",
		func(d described) any {
			return d.packed(func(set *block.Dataset) any { return set.Description().Source.Fingerprint })
		}),
	table.Listed("fingerprint", "fingerprint", "identifies the data: it changes with the files",
		func(d described) any { return d.Fingerprint }),
}

var noteColumns = table.Columns[source.Note]{
	table.Shown("name", "note", "what it is about", func(n source.Note) any { return n.Name }),
	table.Shown("text", "text", "other facts, such as names of classes",
		func(n source.Note) any { return n.Text }),
}

func newSourceInfo() *cobra.Command {
	var f sourceFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "info SRC",
		Short: "Show what a source is: samples, schema, sizes, fingerprint",
		Long: paragraphs(`Opens a source and shows its properties. It reads no sample. With --json: the object of OUTPUT, with fields
and notes.`,
			explainKinds(), infoColumns.Explain("OUTPUT"), fieldColumns.Explain("SCHEMA (fields)"),
			noteColumns.Explain("NOTES (notes)"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Args:              arguments(1, 1, "the path of a source"),
		ValidArgsFunction: filesFirst,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := f.open(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			return sourceInfo(c.Context(), s, args[0], asJSON, c.OutOrStdout())
		},
	}
	f.add(c)
	jsonFlag(c, &asJSON)
	return c
}

func sourceInfo(ctx context.Context, s source.Source, path string, asJSON bool, stdout io.Writer) error {
	d := described{Info: s.Info(), path: path, source: s}
	if both, ok := s.(*imagesource.Both); ok {
		for k, note := range d.Notes {
			if note.Name == imagesource.StoreNote {
				d.Notes[k].Text = "auto: " + both.Explain(ctx, imagesource.Readers())
			}
		}
	}
	if total, least, most, ok := sizes(s); ok {
		d.bytes, d.smallest, d.large = table.Bytes(total), table.Bytes(least), table.Bytes(most)
	}
	if b, ok := s.(source.Blocks); ok {
		d.blocks = table.Count(b.Blocks())
	}
	if asJSON {
		o := infoColumns.Object(d)
		o.Add("fields", fieldColumns.Objects(d.Schema.Fields))
		o.Add("notes", noteColumns.Objects(d.Notes))
		return table.WriteJSON(stdout, o)
	}
	if err := infoColumns.List(stdout, d); err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	if err := fieldColumns.Table(stdout, d.Schema.Fields); err != nil || len(d.Notes) == 0 {
		return err
	}
	fmt.Fprintln(stdout)
	return noteColumns.Table(stdout, d.Notes)
}

// sizes adds up the sizes of all samples. false: a sample's size is unknown.
func sizes(s source.Source) (total, least, most uint64, ok bool) {
	info := s.Info()
	if !info.Schema.Variable {
		return uint64(info.Samples) * info.Schema.SampleBytes, info.Schema.SampleBytes, info.Schema.SampleBytes, true
	}
	least = 1<<64 - 1
	for i := range info.Samples {
		n, err := s.Size(i)
		if err != nil {
			return 0, 0, 0, false
		}
		total, least, most = total+uint64(n), min(least, uint64(n)), max(most, uint64(n))
	}
	return total, least, most, true
}

func newSourceCat() *cobra.Command {
	var f sourceFlags
	var field string
	var force bool
	c := &cobra.Command{
		Use:   "cat SRC INDEX",
		Short: "Write the bytes of a sample",
		Long: paragraphs(`Writes the bytes of one sample to the standard output, as a cache would hold them, or with --field those of
one of its fields: items in C order, little-endian. It does not write to a terminal without --force. There
is no --json: the output is the bytes.`,
			explainKinds(), exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Example: `  stocached source cat ./pictures 17 > picture.jpg
  stocached source cat train 17 --field label | od -An -td8`,
		Args:              arguments(2, 2, "the path of a source and the index of a sample"),
		ValidArgsFunction: filesFirst,
		RunE: func(c *cobra.Command, args []string) error {
			if isTerminal(c.OutOrStdout()) && !force {
				return usage("a terminal cannot show a sample: write it to a file or a program, or give --force")
			}
			s, err := f.open(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			index, err := strconv.Atoi(args[1])
			if err != nil {
				return usage("index %q is not a whole number; the source has samples 0 to %d", args[1],
					s.Info().Samples-1)
			}
			sample, err := readSample(c.Context(), s, index)
			if err != nil {
				return err
			}
			if field != "" {
				if sample, err = fieldOf(s.Info().Schema, sample, field); err != nil {
					return err
				}
			}
			_, err = c.OutOrStdout().Write(sample)
			return err
		},
	}
	f.add(c)
	c.Flags().StringVar(&field, "field", "", "only this field of the sample")
	c.Flags().BoolVar(&force, "force", false, "write to a terminal as well")
	return c
}

func readSample(ctx context.Context, s source.Source, i int) ([]byte, error) {
	n, err := s.Size(i)
	if err != nil {
		return nil, err
	}
	sample := make([]byte, n)
	n, err = s.Read(ctx, i, sample)
	return sample[:n], err
}

func fieldOf(schema shm.Schema, sample []byte, name string) ([]byte, error) {
	k := slices.IndexFunc(schema.Fields, func(f shm.Field) bool { return f.Name == name })
	if k < 0 {
		var names []string
		for _, f := range schema.Fields {
			names = append(names, f.Name)
		}
		return nil, usage("no field %q; there are: %s", name, strings.Join(names, ", "))
	}
	parts, err := schema.Split(sample)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrCorrupt, err)
	}
	return parts[k].Data, nil
}

// failure is a failed read of a sample.
type failure struct {
	index int
	where string
	err   error
}

var failureColumns = table.Columns[failure]{
	table.Shown("index", "sample", "its index", func(f failure) any { return table.Count(f.index) }),
	table.Shown("where", "where", "file and place", func(f failure) any { return f.where }),
	table.Shown("error", "error", "what went wrong", func(f failure) any { return f.err.Error() }),
}

// readThrough is the result of verify.
type readThrough struct {
	path     string
	samples  int
	read     atomic.Int64
	failed   int
	failures []failure // the first mostFailures, by index
	bytes    uint64
	seconds  table.Ratio
}

// mostFailures is the most failures in a list.
const mostFailures = 1000

var readThroughColumns = table.Columns[*readThrough]{
	table.Listed("path", "path", "as given", func(v *readThrough) any { return v.path }),
	table.Listed("samples", "samples", "of the dataset", func(v *readThrough) any { return table.Count(v.samples) }),
	table.Listed("read", "read", "samples that were read, and match their schema",
		func(v *readThrough) any { return table.Count(v.read.Load()) }),
	table.Listed("failed", "failed", "samples that could not be read, or do not match",
		func(v *readThrough) any { return table.Count(v.failed) }),
	table.Listed("bytes", "bytes", "of the samples read", func(v *readThrough) any { return table.Bytes(v.bytes) }),
	table.Listed("seconds", "seconds", "that reading took", func(v *readThrough) any { return v.seconds }),
	table.Listed("bytes_per_second", "speed", "of reading",
		func(v *readThrough) any { return table.BytesPerSecond(float64(v.bytes) / float64(v.seconds)) }),
	table.InJSON("failures", fmt.Sprintf("the first %d failures: index, where, error; on stderr for people",
		mostFailures), func(v *readThrough) any { return failureColumns.Objects(v.failures) }),
}

// interruptible returns a context that ends at the first Ctrl-C. The second Ctrl-C ends the
// process.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// defaultReaders is the number of goroutines that read: enough to keep a disk busy, and few enough
// for any disk.
const defaultReaders = 8

func readersFlag(c *cobra.Command, readers *int) {
	c.Flags().IntVarP(readers, "jobs", "j", defaultReaders,
		"samples to read at a time; more are faster on slow disks and networks")
}

func checkReaders(n int) error {
	if n < 1 || n > 4096 {
		return usage("--jobs %d is not in 1..4096", n)
	}
	return nil
}

func newSourceVerify() *cobra.Command {
	var f sourceFlags
	var asJSON bool
	var readers int
	c := &cobra.Command{
		Use:   "verify SRC",
		Short: "Read every sample of a source",
		Long: paragraphs(`Reads every sample once, several at a time. It compares each with its checksum, if the kind has checksums
(block), and with the schema. It counts and lists failures and goes on. On a terminal a bar shows the
progress.`,
			explainKinds(), readThroughColumns.Explain("OUTPUT"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Args:              arguments(1, 1, "the path of a source"),
		ValidArgsFunction: filesFirst,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkReaders(readers); err != nil {
				return err
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			s, err := f.open(ctx, args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			v, err := verifySource(ctx, s, readers, c.ErrOrStderr())
			if err != nil {
				return err
			}
			v.path = args[0]
			if err := readThroughColumns.One(c.OutOrStdout(), v, asJSON); err != nil {
				return err
			}
			return v.report(asJSON, c.ErrOrStderr())
		},
	}
	f.add(c)
	readersFlag(c, &readers)
	jsonFlag(c, &asJSON)
	return c
}

// verifySource reads all samples. An interrupt ends it with an error.
func verifySource(ctx context.Context, s source.Source, readers int, stderr io.Writer) (*readThrough, error) {
	info := s.Info()
	v := &readThrough{samples: info.Samples}
	bar := newPace(stderr, "verify", uint64(info.Samples))
	defer bar.end()
	began := time.Now()
	var mu sync.Mutex // protects failed and failures
	done := forEach(ctx, info.Samples, readers, bar, func(i int, buffer *[]byte) error {
		n, err := readInto(ctx, s, i, buffer)
		if err == nil {
			_, err = info.Schema.Split((*buffer)[:n])
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			v.read.Add(1)
			bar.bytes.Add(uint64(n))
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		v.failed++
		if at, _ := slices.BinarySearchFunc(v.failures, i,
			func(f failure, i int) int { return f.index - i }); at < mostFailures {
			v.failures = slices.Insert(v.failures, at, failure{i, s.Where(i), err})
			v.failures = v.failures[:min(len(v.failures), mostFailures)]
		}
		return nil
	})
	v.bytes, v.seconds = bar.bytes.Load(), table.Ratio(time.Since(began).Seconds())
	if done != nil {
		return nil, fmt.Errorf("interrupted after %d of %d samples, %d of them bad", v.read.Load()+int64(v.failed),
			info.Samples, v.failed)
	}
	return v, nil
}

// readInto reads a sample into a buffer, which it enlarges if needed.
func readInto(ctx context.Context, s source.Source, i int, buffer *[]byte) (int, error) {
	n, err := s.Size(i)
	if err != nil {
		return 0, err
	}
	if cap(*buffer) < n {
		*buffer = make([]byte, n)
	}
	*buffer = (*buffer)[:cap(*buffer)]
	return s.Read(ctx, i, (*buffer)[:n])
}

// forEach calls work for 0..n-1 from several goroutines, each with its own buffer, until one fails
// or ctx ends. It reports the progress to bar.
func forEach(ctx context.Context, n, goroutines int, bar *pace, work func(i int, buffer *[]byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var all sync.WaitGroup
	for range min(goroutines, n) {
		all.Go(func() {
			var buffer []byte
			for i := int(next.Add(1) - 1); i < n && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				if err := work(i, &buffer); err != nil {
					cancel(err)
					return
				}
				bar.set(uint64(done.Add(1)))
			}
		})
	}
	all.Wait()
	if done.Load() < int64(n) {
		return context.Cause(ctx)
	}
	return nil
}

// report lists the bad samples for people, and returns the error.
func (v *readThrough) report(asJSON bool, stderr io.Writer) error {
	if v.failed == 0 {
		return nil
	}
	err := fmt.Errorf("%w: %d of %d samples cannot be read", source.ErrCorrupt, v.failed, v.samples)
	if !asJSON {
		const most = 20
		complain(stderr, err)
		for _, f := range v.failures[:min(most, len(v.failures))] {
			fmt.Fprintf(stderr, "  sample %d, %s: %s\n", f.index, table.Text(f.where), table.Text(f.err.Error()))
		}
		if v.failed > most {
			fmt.Fprintf(stderr, "  and %d more (--json lists the first %d)\n", v.failed-most, mostFailures)
		}
	}
	return errors.Join(reported(err))
}
