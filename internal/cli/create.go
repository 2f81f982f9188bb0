package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// createFlags is the command line of create.
type createFlags struct {
	dirFlag
	given  shm.Options // without those below
	shape  string
	dtype  string
	fields []string
	policy string
	unlink string
	json   bool
}

// created is what create prints.
type created struct {
	seg  *shm.Segment
	name string
}

var createColumns = table.Columns[created]{
	table.InJSON("name", "of the cache", func(c created) any { return c.name }),
	table.InJSON("path", "of its file", func(c created) any { return c.seg.Path() }),
	table.Listed("samples", "samples", "of the dataset", func(c created) any { return table.Count(c.seg.Samples) }),
	table.Listed("slots", "slots", "samples that fit; none in a variable-size cache",
		func(c created) any { return slots(&c.seg.Geometry) }),
	table.Listed("slots_fraction", "slots / samples", "the hit rate once it is full",
		func(c created) any { return slotsFraction(&c.seg.Geometry) }),
	table.Listed("sample_bytes", "sample", "bytes of a sample; the largest accepted in a variable-size cache",
		func(c created) any { return table.Bytes(c.seg.Header.SampleBytes) }),
	table.InJSON("slot_bytes", "bytes of a slot of a variable-size cache that evicts; a sample takes several",
		func(c created) any { return slotBytes(&c.seg.Geometry) }),
	table.Listed("payload_bytes", "payload", "bytes for samples",
		func(c created) any { return table.Bytes(c.seg.PayloadBytes) }),
	table.Listed("segment_bytes", "size",
		"the most bytes of the file, tables included; pages are allocated as samples come, unless --reserve",
		func(c created) any { return table.Bytes(c.seg.SegmentBytes) }),
	table.Listed("allocated_bytes", "memory", "pages allocated now", func(c created) any { return allocated(c.seg) }),
	table.InJSON("unlink", "when it is removed: never (only by command) or last (by its last user)",
		func(c created) any { return unlinkOf(&c.seg.Header) }),
}

func newCreate() *cobra.Command {
	f := &createFlags{}
	c := &cobra.Command{
		Use: "create NAME --samples N (--shape 3,224,224 | --field name:dtype:shape ... | --sample-bytes SIZE | " +
			"--variable) [--size 8GiB]",
		Short: "Create a named cache",
		Long: paragraphs(`Creates a cache for a dataset of N samples, and ends: programs attach to it by its name. create first
checks that the cache fits: into the tmpfs, less what data loaders and the other caches there will need,
into every cgroup, and into the machine. Memory is allocated as samples are stored, or all at once with
--reserve, which shows a bar on a terminal.

A name is needed: a cache without one ends with the last process that has it, which would be this command.
Programs create such caches.`,
			`What a sample is:
  --shape 3,224,224 --dtype uint8     one array of this shape
  --field image:uint8:3,224,224       one of several named arrays; repeat for each; name:dtype is a single item
  --sample-bytes 150528               that many bytes
  --variable                          samples differ in size, up to --sample-bytes; needs --size
With --variable and a policy that evicts, samples lie in slots whose size follows from --size and --samples, so
that unused ends of slots take at most an eighth of the memory.
With --variable a dimension that differs between samples is ?, as in --shape ?,?,3.
dtypes: bytes, bool, (u)int8, (u)int16, (u)int32, (u)int64, float16, bfloat16, float32, float64,
complex64, complex128.`,
			createColumns.Explain("OUTPUT"),
			`The last line says how long the cache exists and how to remove it (in JSON: unlink).`,
			exitStatus(exitMemory, exitExists, exitPermission)),
		Example: `  stocached create imagenet --samples 1281167 --shape 3,224,224 --size 64GiB
  stocached create pairs --samples 50000 --field image:uint8:3,32,32 --field label:int64
  stocached create jpegs --samples 1281167 --variable --size 120GB --unlink last
  stocached create texts --samples 50000 --variable --size 8GiB --policy cost`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 || args[0] == "":
				return usage("create needs a name: a cache without one is memory of the processes that have it, " +
					"and would go with this command as it ends; " +
					"give it a name, or let the program that uses it create it")
			case len(args) > 1:
				return usage("%d names, create makes one cache at a time", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			for flag, n := range map[string]uint64{"slots": f.given.Slots, "clients": uint64(f.given.ClientRecords)} {
				if n == 0 && c.Flags().Changed(flag) {
					return usage("--%s: %s", flag, shm.OptionNamed(flag).Refuse(n))
				}
			}
			sizes := []string{"shape", "field", "sample-bytes", "variable"}
			if !slices.ContainsFunc(sizes, c.Flags().Changed) {
				return usage("create needs the size of a sample: --%s or --%s",
					strings.Join(sizes[:3], ", --"), sizes[3])
			}
			return f.run(args[0], c.Flags().Changed("shape"), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f.add(c)
	flags := c.Flags()
	given, about := &f.given, func(name string) string { return shm.OptionNamed(name).Help() }
	for _, name := range []string{"size", "sample_bytes", "slot_bytes"} {
		p := shm.OptionNamed(name)
		flags.Var(optionBytes{p, p.In(given)}, strings.ReplaceAll(name, "_", "-"), p.Help())
	}
	flags.Uint64Var(&given.Samples, "samples", 0, about("samples"))
	flags.BoolVar(&given.Variable, "variable", false, about("variable"))
	flags.StringVar(&f.policy, "policy", given.Policy.String(), about("policy"))
	flags.Uint64Var(&given.Slots, "slots", 0, about("slots"))
	flags.BoolVar(&given.Reserve, "reserve", false, about("reserve"))
	flags.StringVar(&f.unlink, "unlink", "never", about("unlink"))
	flags.StringVar(&given.Fingerprint, "fingerprint", "", about("fingerprint"))
	flags.Uint32Var(&given.ClientRecords, "clients", 0, about("clients"))
	flags.StringVar(&f.shape, "shape", "", "shape of a sample, such as 3,224,224")
	flags.StringVar(&f.dtype, "dtype", "", "type of its items (default uint8; bytes with --variable and no shape)")
	flags.StringArrayVar(&f.fields, "field", nil, "a named field of a sample as name:dtype:shape; repeatable")
	jsonFlag(c, &f.json)
	exclusive(c, "field", "shape")
	exclusive(c, "field", "dtype")
	must(c.MarkFlagRequired("samples"))
	planned := func(name string) bool { return name == shm.PolicyPlanned.String() } // needs a server
	choices(c, "policy", slices.DeleteFunc(shm.PolicyNames(), planned)...)
	choices(c, "unlink", "never", "last")
	return c
}

// options turns the flags into options of package shm. shaped: --shape was given.
func (f *createFlags) options(name string, shaped bool) (shm.Options, error) {
	o := f.given
	o.Name, o.Dir = name, f.dir
	var err error
	if o.Policy, err = shm.ParsePolicy(f.policy); err != nil {
		return o, usage("%s", strings.TrimPrefix(err.Error(), shm.ErrInvalid.Error()+": "))
	}
	if o.Policy == shm.PolicyPlanned {
		return o, usage("policy planned needs a server, which knows what jobs read: write policy: planned into its " +
			"configuration (stocached serve)")
	}
	switch f.unlink {
	case "never":
	case "last":
		o.UnlinkLast = true
	default:
		return o, usage("unlink %q is neither never nor last", f.unlink)
	}
	var field shm.Field
	switch {
	case shaped:
		field, err = arrayField("data", cmp.Or(f.dtype, "uint8"), f.shape)
	case o.Variable && f.fields == nil: // as the other clients do: bytes, unless it was said what they are
		field, err = arrayField("data", cmp.Or(f.dtype, "bytes"), "?")
	case f.dtype != "":
		return o, usage("dtype %q: give a --shape with it", f.dtype)
	default:
		for _, text := range f.fields {
			if field, err = parseField(text); err != nil {
				return o, err
			}
			o.Fields = append(o.Fields, field)
		}
		return o, nil
	}
	o.Fields = []shm.Field{field}
	return o, err
}

func (f *createFlags) run(name string, shaped bool, stdout, stderr io.Writer) error {
	o, err := f.options(name, shaped)
	if err != nil {
		return err
	}
	var bar *progress
	if o.Reserve {
		o.Progress = func(done, total uint64) {
			if bar == nil {
				bar = newProgress(stderr, "reserve", total, true)
			}
			bar.set(done)
		}
	}
	seg, err := shm.Create(o)
	if bar != nil {
		bar.end()
	}
	if err != nil {
		return err
	}
	defer seg.Close()
	if seg.Replaced != nil {
		complain(stderr, fmt.Errorf("%w; no process used it, so an empty cache has replaced it", seg.Replaced))
	}
	made := created{seg, name}
	if f.json {
		return table.WriteJSON(stdout, createColumns.Object(made))
	}
	fmt.Fprintf(stdout, "created %s\n", seg.Path())
	if err := createColumns.List(stdout, made); err != nil {
		return err
	}
	remove := "stocached rm " + name
	if f.dir != "" {
		remove += " --dir " + f.dir
	}
	if o.UnlinkLast {
		_, err = fmt.Fprintf(stdout, "this cache ends with its last user: it waits for the first one, and is removed "+
			"when the last one ends (sooner: %s)\n", remove)
	} else {
		_, err = fmt.Fprintf(stdout, "this cache stays until: %s\n", remove)
	}
	return err
}
