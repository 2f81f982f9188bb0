package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// warmed is what warm prints.
type warmed struct {
	name    string
	shape   shm.Geometry
	kept    uint64 // samples that were in the cache before
	ready   uint64 // samples in the cache now
	queue   *warmQueue
	came    atomic.Int64 // batches that the server has answered
	seconds table.Ratio
}

var warmColumns = table.Columns[*warmed]{
	table.InJSON("name", "of the cache", func(w *warmed) any { return w.name }),
	table.Listed("samples", "samples", "of the dataset", func(w *warmed) any { return table.Count(w.shape.Samples) }),
	table.Listed("slots", "slots", "samples that fit; none in a variable-size cache",
		func(w *warmed) any { return slots(&w.shape) }),
	table.Listed("ready", "filled", "samples in the cache now", func(w *warmed) any { return table.Count(w.ready) }),
	table.Listed("cached_fraction", "cached", "filled / samples: the hit rate to expect of an epoch that begins now",
		func(w *warmed) any { return table.Fraction(w.ready, w.shape.Samples) }),
	table.Listed("full", "full", "no other sample fits", func(w *warmed) any { return w.full() }),
	table.Listed("kept_samples", "kept", "samples that were in the cache before",
		func(w *warmed) any { return table.Count(w.kept) }),
	table.Listed("filled_samples", "new", "samples that warm requested, and that are in the cache",
		func(w *warmed) any { return table.Count(w.queue.filled) }),
	table.Listed("failed_samples", "failed", "samples that could not be filled",
		func(w *warmed) any { return table.Count(w.queue.failed) }),
	table.Listed("bytes", "bytes", "of the new ones", func(w *warmed) any { return table.Bytes(w.queue.bytes) }),
	table.Listed("seconds", "seconds", "that warm took", func(w *warmed) any { return w.seconds }),
	table.Listed("bytes_per_second", "speed", "of filling",
		func(w *warmed) any { return table.BytesPerSecond(float64(w.queue.bytes) / float64(w.seconds)) }),
	table.InJSON("failures", fmt.Sprintf("the first %d failures by index: index, code (docs/spec/control.md), "+
		"error; on stderr for people", mostFailures),
		func(w *warmed) any { return unfilledColumns.Objects(w.queue.failures) }),
}

var unfilledColumns = table.Columns[unfilled]{
	table.Shown("index", "sample", "its index", func(f unfilled) any { return table.Count(f.index) }),
	table.Shown("code", "code", "of the failure", func(f unfilled) any { return f.code.String() }),
	table.Shown("error", "error", "what went wrong", func(f unfilled) any { return f.why }),
}

// full says whether no further sample fits into a cache that does not hold all of them.
func (w *warmed) full() bool {
	return w.queue.full || !w.shape.Variable() && w.ready >= w.shape.Slots
}

// unansweredPings is how many pings in a row a server may leave unanswered: a very busy machine may
// answer one late.
const unansweredPings = 3

// mostRequests is the most requests of one client that a server accepts at a time.
const mostRequests = control.MaxRequests

func newWarm() *cobra.Command {
	var sockets socketsFlag
	var asJSON bool
	parallel := 8
	c := &cobra.Command{
		Use:   "warm NAME",
		Short: "Let a server fill its cache before training",
		Long: paragraphs(`Asks the server that has the cache to read every missing sample, in the order of their indices, until the
cache is full or holds all of them. Training may begin before that: the server reads each sample once, and
serves its clients round robin. On a terminal a bar shows the progress, the speed and the time left.`,
			`No sample passes through this program. --parallel is how many requests it has under way, each for some MB
of samples. The key parallel of the cache in the server's configuration says how many samples the server
reads at a time.`,
			`warm stops when the cache is full, and when memory is short: the server reads no sample that it cannot
store. The exit status is then that of too little memory.`,
			`warm counts and lists samples that cannot be read, and goes on; the exit status is then 1. If the server
ends, warm waits --timeout for the next one and goes on. A server that still runs but no longer answers
ends it. The filled samples stay in every case: after Ctrl-C, or without a server, the same command goes on
from there.`,
			warmColumns.Explain("OUTPUT"),
			exitStatus(exitNotFound, exitMemory, exitPermission, exitNoServer)),
		Example: `  stocached warm imagenet
  stocached warm imagenet --json > warm.json && python train.py`,
		Args: func(c *cobra.Command, args []string) error {
			if err := arguments(1, 1, "the name of a cache")(c, args); err != nil {
				return err
			}
			if parallel < 1 || parallel > mostRequests {
				return usage("--parallel %d is not in 1..%d", parallel, mostRequests)
			}
			return errors.Join(checkServed(args[0]), sockets.check())
		},
		ValidArgsFunction: sockets.complete,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			served, err := stocclient.Dial(ctx, args[0], sockets.options())
			if err != nil {
				return asMissing(err)
			}
			defer served.Close()
			w, err := warm(ctx, args[0], served, sockets.options(), parallel, c.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				err = table.WriteJSON(c.OutOrStdout(), warmColumns.Object(w))
			} else {
				fmt.Fprintln(c.OutOrStdout(), w.headline())
				err = warmColumns.List(c.OutOrStdout(), w)
			}
			return errors.Join(err, w.report(asJSON, c.ErrOrStderr()))
		},
	}
	sockets.add(c)
	c.Flags().IntVarP(&parallel, "parallel", "j", parallel, fmt.Sprintf("requests under way, at most %d", mostRequests))
	jsonFlag(c, &asJSON)
	return c
}

// warm fills a cache. Samples that fail are not an error. server has the options for pings on a
// connection beside c.
func warm(interrupt context.Context, name string, c *stocclient.Served, server stocclient.DialOptions, parallel int,
	stderr io.Writer) (*warmed, error) {
	began := time.Now()
	seg, err := shm.OpenFD(c.Info().FD, shm.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	w := &warmed{name: name, shape: seg.Geometry}
	if err := seg.Close(); err != nil {
		return nil, err
	}
	before, err := c.Stats()
	if err != nil {
		return nil, err
	}
	w.kept, w.queue = before.Ready, newWarmQueue(c, w.shape, before)
	bar := newPace(stderr, "warm", 0)
	defer bar.end()
	bar.of(w.queue.goal())
	bar.begin(w.kept)
	bar.set(w.kept)
	w.queue.tell = func(filled, bytes, goal uint64) {
		bar.bytes.Store(bytes)
		bar.of(goal)
		bar.set(w.kept + filled)
	}
	ctx, cancel := context.WithCancelCause(interrupt)
	defer cancel(nil)
	var all sync.WaitGroup
	for range parallel {
		all.Go(func() {
			if err := guard(func() error { return w.work(ctx, c) }); err != nil {
				cancel(err) // the first error is the cause
				w.queue.stop()
			}
		})
	}
	var watch sync.WaitGroup
	working, end := context.WithCancel(ctx)
	watch.Go(func() {
		if err := w.watch(working, server); err != nil {
			cancel(err)
			w.queue.stop()
		}
	})
	all.Wait()
	end()
	watch.Wait()
	after, err := c.Stats()
	if err != nil {
		return nil, err
	}
	w.ready, w.seconds = after.Ready, table.Ratio(time.Since(began).Seconds())
	switch {
	case interrupt.Err() != nil:
		return nil, fmt.Errorf("interrupted: %s", w.soFar())
	case ctx.Err() != nil:
		return nil, w.ended(context.Cause(ctx))
	}
	return w, nil
}

// work requests one batch after the other.
func (w *warmed) work(ctx context.Context, c *stocclient.Served) error {
	for {
		batch, err := w.queue.next()
		if err != nil || len(batch) == 0 {
			return err
		}
		var failed stocclient.FetchError
		err = c.Fill(ctx, batch)
		if some := (*stocclient.FetchError)(nil); errors.As(err, &some) {
			failed, err = *some, nil
		}
		if err != nil {
			return err
		}
		w.came.Add(1)
		if err := w.queue.back(ctx, batch, failed.Failures); err != nil {
			return err
		}
	}
}

// watch returns the error of a server that has stopped answering: it sends no more samples, and
// does not answer a ping either. A server may read as long as it needs for one batch. nil: ctx has
// ended.
func (w *warmed) watch(ctx context.Context, server stocclient.DialOptions) error {
	for silent, came := 0, int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(server.Timeout):
		}
		if now := w.came.Load(); now != came {
			silent, came = 0, now
			continue
		}
		switch err := stocclient.Ping(ctx, "", server); {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, stocclient.ErrTimeout): // the workers wait for a server that is gone
			silent = 0
		default:
			if silent++; silent == unansweredPings {
				return err
			}
		}
	}
}

// soFar says what stays after an incomplete warm.
func (w *warmed) soFar() string {
	return fmt.Sprintf("%v of %v samples are in the cache and stay there, and the same command goes on from there",
		table.Count(w.ready), table.Count(w.queue.goal()))
}

// ended is the error of an incomplete warm.
func (w *warmed) ended(why error) error {
	if errors.Is(why, stocclient.ErrReplaced) {
		return fmt.Errorf("%w: its source has changed; the same command fills the new one", stocclient.ErrReplaced)
	}
	return fmt.Errorf("%w; %s", asMissing(why), w.soFar())
}

// headline is the result for people.
func (w *warmed) headline() string {
	switch {
	case w.ready >= w.shape.Samples:
		return w.name + " holds every sample"
	case w.full():
		return fmt.Sprintf("%s is full: %v of %v samples fit", w.name, table.Count(w.ready),
			table.Count(w.shape.Samples))
	}
	return fmt.Sprintf("%s holds %v of %v samples", w.name, table.Count(w.ready), table.Count(w.shape.Samples))
}

// report lists the failed samples for people, and returns the error.
func (w *warmed) report(asJSON bool, stderr io.Writer) error {
	if w.queue.short {
		return fmt.Errorf("%w: %v of %v samples are in %s and %v would fit, but the machine, its /dev/shm or a "+
			"cgroup has no memory for more (stocached health has the numbers): free some (stocached ls, stocached gc), "+
			"or make the cache smaller", shm.ErrMemory, table.Count(w.ready), table.Count(w.shape.Samples), w.name,
			table.Count(w.queue.goal()))
	}
	if w.queue.failed == 0 {
		return nil
	}
	err := fmt.Errorf("%s could not be filled", table.Plural(w.queue.failed, "sample"))
	if asJSON {
		return reported(err)
	}
	const most = 10
	complain(stderr, err)
	for _, f := range w.queue.failures[:min(most, len(w.queue.failures))] {
		if f.why == "" { // the server omits texts when there are many
			f.why = fmt.Sprintf("sample %d", f.index)
		}
		fmt.Fprintf(stderr, "  %v: %s\n", f.code, table.Text(f.why))
	}
	if w.queue.failed > most {
		fmt.Fprintf(stderr, "  and %d more (--json lists the first %d)\n", w.queue.failed-most, mostFailures)
	}
	if w.queue.changed {
		fmt.Fprintln(stderr, "The source has changed: run stocached reload, which begins a cold cache of the new data.")
	}
	return reported(err)
}
