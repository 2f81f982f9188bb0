package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/source"
	imagesource "github.com/stocached/stocached/source/decode"
)

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
	failures []failure          // the first mostFailures, by index
	kinds    []imagesource.Kind // nil: the samples are no pictures
	bytes    uint64
	seconds  table.Ratio
}

// mostFailures is the most failures in a list.
const mostFailures = 1000

// keepFirst adds to a list of the first failures by index.
func keepFirst[F any](list *[]F, one F, index func(F) int) {
	at, _ := slices.BinarySearchFunc(*list, index(one), func(f F, i int) int { return index(f) - i })
	if at < mostFailures {
		*list = slices.Insert(*list, at, one)
		*list = (*list)[:min(len(*list), mostFailures)]
	}
}

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
	table.InJSON("kinds", "with --decode, the kinds of the files, the most frequent first; a line for people",
		func(v *readThrough) any { return kindColumns.Objects(v.kinds) }),
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
			`With --decode, it counts the files by their kind, which the content says, and never the name. GIF, BMP, TIFF
and other kinds that a server leaves to Python clients are neither read nor failed: Pillow decodes them.`,
			explainKinds(), readThroughColumns.Explain("OUTPUT"), kindColumns.Explain("KINDS (kinds)"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission)),
		Args:              arguments(1, 1, "the path of a source"),
		ValidArgsFunction: filesFirst(1),
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
			if !asJSON && v.kinds != nil {
				printKinds(c.OutOrStdout(), "", "kinds", v.kinds)
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
	kinds := imagesource.KindsOf(s)
	if kinds != nil {
		s = kinds
	}
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
		if source.IsOtherKind(err) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		v.failed++
		keepFirst(&v.failures, failure{i, s.Where(i), err}, func(f failure) int { return f.index })
		return nil
	})
	if kinds != nil {
		v.kinds = kinds.List()
	}
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
	var done atomic.Int64
	buffers := sync.Pool{New: func() any { return new([]byte) }}
	return source.Each(ctx, n, goroutines, 1, func(_ context.Context, i int) error {
		buffer := buffers.Get().(*[]byte)
		defer buffers.Put(buffer)
		if err := work(i, buffer); err != nil {
			return err
		}
		bar.set(uint64(done.Add(1)))
		return nil
	})
}

// report lists the bad samples for people, and returns the error.
func (v *readThrough) report(asJSON bool, stderr io.Writer) error {
	if v.failed == 0 {
		return nil
	}
	if !asJSON {
		const most = 20
		complain(stderr, fmt.Errorf("%d of %d samples cannot be read", v.failed, v.samples))
		for _, f := range v.failures[:min(most, len(v.failures))] {
			fmt.Fprintf(stderr, "  sample %d, %s: %s\n", f.index, table.Text(f.where), table.Text(f.err.Error()))
		}
		if v.failed > most {
			fmt.Fprintf(stderr, "  and %d more (--json lists the first %d)\n", v.failed-most, mostFailures)
		}
	}
	return reported(source.ErrCorrupt) // also if the data is good, and this user may not read it: each failure says why
}
