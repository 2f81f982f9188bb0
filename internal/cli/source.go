package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	imagesource "github.com/stocached/stocached/source/decode"
)

func newSource() *cobra.Command {
	c := &cobra.Command{
		Use:   "source",
		Short: "Inspect a source of samples: info, cat, verify",
		Long: paragraphs(`Inspects a source by itself, without a cache: what a server would read from it.`, `SOURCES`,
			explainKinds(), `With --json each prints one object.`, exitStatus()),
		Args: arguments(0, 0, "info, cat or verify first"),
		RunE: func(*cobra.Command, []string) error { return usage("source needs info, cat or verify") },
	}
	c.AddCommand(newSourceInfo(), newSourceCat(), newSourceVerify())
	return c
}

// filesFirst completes only the first n arguments, as files.
func filesFirst(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) < n {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// described is what info prints.
type described struct {
	source.Info
	path            string
	bytes           any // bytes of all samples, byteCount; nil: unknown
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
		ValidArgsFunction: filesFirst(1),
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
