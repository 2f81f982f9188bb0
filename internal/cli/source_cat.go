package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

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
		ValidArgsFunction: filesFirst(1),
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
	var sample []byte
	n, err := readInto(ctx, s, i, &sample)
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
