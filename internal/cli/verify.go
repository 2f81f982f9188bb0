package cli

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// verification is the result of verify.
type verification struct {
	name    string
	samples uint64
	checked uint64
	corrupt table.List[uint64]
}

var verifyColumns = table.Columns[*verification]{
	table.Listed("name", "name", "as given", func(v *verification) any { return v.name }),
	table.Listed("samples", "samples", "of the dataset", func(v *verification) any { return table.Count(v.samples) }),
	table.Listed("checked", "checked", "samples that were READY: their bytes were compared with their checksums",
		func(v *verification) any { return table.Count(v.checked) }),
	table.Listed("corrupt", "corrupt", "samples whose bytes differ from what was stored, or whose words are invalid",
		func(v *verification) any { return table.Count(len(v.corrupt)) }),
	table.InJSON("corrupt_samples", "their indices; on stderr for people",
		func(v *verification) any { return v.corrupt }),
}

// verifyStep is how many bytes are checked before verify checks the signals and redraws the bar:
// about 10 ms.
const verifyStep = 64 << 20

func newVerify() *cobra.Command {
	var dir dirFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify NAME",
		Short: "Compare the samples of a cache with their checksums",
		Long: paragraphs(`Reads every READY sample and compares it with its CRC-32C. If a sample changes during the check, verify checks it
again, so it can run while programs use the cache. It counts no hits and changes nothing. On a terminal a
bar shows the progress.`,
			verifyColumns.Explain("OUTPUT"),
			`Programs still read corrupt samples: remove the cache, or let a program clear it or overwrite them.`,
			exitStatus(exitNotFound, exitCorrupt, exitPermission, exitVersion)),
		Args:              arguments(1, 1, "the name of a cache"),
		ValidArgsFunction: dir.complete(1, true),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			v := &verification{name: args[0]}
			if err := dir.with(args[0], func(seg *shm.Segment, reader *cache.Cache) error {
				return v.check(ctx, seg, reader, c.ErrOrStderr())
			}); err != nil {
				return err
			}
			if err := verifyColumns.One(c.OutOrStdout(), v, asJSON); err != nil {
				return err
			}
			return v.report(asJSON, c.ErrOrStderr())
		},
	}
	dir.add(c)
	jsonFlag(c, &asJSON)
	return c
}

// check checks all samples in steps. An interrupt ends it with an error.
func (v *verification) check(ctx context.Context, seg *shm.Segment, reader *cache.Cache, stderr io.Writer) error {
	v.samples = seg.Samples
	bar := newProgress(stderr, "verify", seg.Samples, false)
	defer bar.end()
	step := verifyStep / min(seg.Header.SampleBytes, verifyStep)
	if seg.Variable() { // the largest accepted size says little about the others
		step = 64
	}
	for first := uint64(0); first < seg.Samples; first += step {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted after %d of %d samples, %d of them corrupt", first, seg.Samples,
				len(v.corrupt))
		}
		n := min(step, seg.Samples-first)
		result, err := reader.Verify(int(first), int(n))
		if err != nil {
			return err
		}
		v.checked += uint64(result.Checked)
		if result.Corrupt > 0 {
			if err := v.find(reader, first, n); err != nil {
				return err
			}
		}
		bar.set(first + n)
	}
	return nil
}

// find lists the corrupt samples of a step that has some.
func (v *verification) find(reader *cache.Cache, first, n uint64) error {
	for i := first; i < first+n; i++ {
		result, err := reader.Verify(int(i), 1)
		if err != nil {
			return err
		}
		if result.Corrupt > 0 {
			v.corrupt = append(v.corrupt, i)
		}
	}
	return nil
}

// report lists the corrupt samples for people, and returns the error.
func (v *verification) report(asJSON bool, stderr io.Writer) error {
	if len(v.corrupt) == 0 {
		return nil
	}
	err := fmt.Errorf("%w: %d of %d samples", shm.ErrCorrupt, len(v.corrupt), v.checked)
	if !asJSON {
		const most = 20
		shown, more := v.corrupt, ""
		if len(shown) > most {
			shown, more = shown[:most], ", ... (--json lists all)"
		}
		complain(stderr, fmt.Sprintf("%v, such as %v%s; remove the cache (stocached rm %s) or overwrite them", err,
			shown, more, v.name))
	}
	return reported(err)
}
