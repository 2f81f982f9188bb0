package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// watch is stats --watch.
type watch struct {
	dir      *dirFlag
	name     string // "": all caches
	interval time.Duration
	count    uint64 // intervals to show; 0: no end
	json     bool
	with     extras

	before map[[16]byte]*stats // the last read of each segment
	rows   int                 // lines so far, without headings
}

// interval is a cache or a client now and at the last read.
type interval[T any] struct {
	now     *T
	before  *T // nil: this is the first read
	seconds float64
}

// rate of a counter in the interval.
func (i interval[T]) rate(counter func(*T) uint64) float64 {
	if i.before == nil {
		return math.NaN()
	}
	return float64(counter(i.now)-counter(i.before)) / i.seconds
}

// change is a cache in an interval.
type change struct{ interval[stats] }

func newChange(now, before *stats) change {
	c := change{interval[stats]{now, before, math.NaN()}}
	if before != nil {
		c.seconds = now.at.Sub(before.at).Seconds()
	}
	return c
}

var watchColumns = table.Columns[change]{
	table.Shown("time", "time", "of the read, local (JSON: UTC)", func(c change) any { return table.Clock(c.now.at) }),
	table.Shown("interval_hit_rate", "hit rate",
		"hits / (hits + misses) in the interval; none: no client asked for samples",
		func(c change) any { return c.hitRate() }),
	table.Shown("hits_per_second", "hits/s", "in the interval",
		func(c change) any { return table.PerSecond(c.rate(hits)) }),
	table.Shown("misses_per_second", "misses/s", "in the interval",
		func(c change) any { return table.PerSecond(c.rate(misses)) }),
	table.Shown("stored_per_second", "sets/s", "samples stored in the interval",
		func(c change) any { return table.PerSecond(c.rate(stored)) }),
	table.Shown("evicted_per_second", "evicted/s", "samples that went for others in the interval",
		func(c change) any { return table.PerSecond(c.rate(evicted)) }),
	table.Shown("cached_fraction", "cached", "filled / samples",
		func(c change) any { return table.Fraction(c.now.Ready, c.now.Samples) }),
	table.Shown("allocated_bytes", "memory", "pages that the file has now",
		func(c change) any { return table.Bytes(c.now.AllocatedBytes) }),
	table.Shown("clients_live", "live", "live clients", func(c change) any { return table.Count(c.now.ClientsLive) }),
	table.Shown("name", "name", "of the cache", func(c change) any { return c.now.name }),
	table.InJSON("interval_seconds", "since the last read", func(c change) any { return table.Ratio(c.seconds) }),
	table.InJSON("stored_bytes_per_second", "bytes of the samples stored in the interval",
		func(c change) any { return table.BytesPerSecond(c.rate(storedBytes)) }),
	table.InJSON("interval_busy", "races lost in the interval",
		func(c change) any { return c.difference(busy) }),
	table.InJSON("interval_full", "sets refused in the interval for lack of space",
		func(c change) any { return c.difference(full) }),
}

// widths are those of all shown columns but the last, so that lines that come one by one stand below each
// other. With a short name they fill 80 columns.
var widths = []int{8, 8, 8, 8, 7, 9, 6, 9, 4}

// headingEvery is the number of lines on a terminal after which their heading comes again.
const headingEvery = 20

func hits(s *stats) uint64        { return s.Hits }
func misses(s *stats) uint64      { return s.Misses }
func stored(s *stats) uint64      { return s.Stored }
func storedBytes(s *stats) uint64 { return s.StoredBytes }
func busy(s *stats) uint64        { return s.Busy }
func full(s *stats) uint64        { return s.Full }
func evicted(s *stats) uint64     { return s.Evicted }

// difference of a counter; nil at the first read.
func (c change) difference(counter func(*stats) uint64) any {
	if c.before == nil {
		return nil
	}
	return table.Count(counter(c.now) - counter(c.before))
}

func (c change) hitRate() table.Ratio {
	if c.before == nil {
		return table.Ratio(math.NaN())
	}
	h, m := c.now.Hits-c.before.Hits, c.now.Misses-c.before.Misses
	return table.Fraction(h, h+m)
}

// run reads the caches at each interval. It waits for a cache that does not exist yet. An interrupt
// or the end of the cache ends it without an error.
func (w *watch) run(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	show := w.lines
	if w.json {
		show = w.objects
	}
	w.before = map[[16]byte]*stats{}
	waiting := false
	for n := uint64(0); ; {
		changes, err := w.read(stderr)
		switch {
		case errors.Is(err, shm.ErrNotFound) && n > 0:
			fmt.Fprintf(stderr, "%s is gone\n", w.name)
			return nil
		case errors.Is(err, shm.ErrNotFound) && w.name != "" &&
			!isUnnamed(w.name): // no other cache gets such a name, which is random
			if !waiting {
				fmt.Fprintf(stderr, "no cache %s yet; waiting until a program makes it\n", w.place())
			}
			waiting = true
		case err != nil && !errors.Is(err, errReported):
			return err
		default:
			if n == 0 && len(changes) == 0 && err == nil {
				fmt.Fprintln(stderr, live.None(w.dir.shown()))
			}
			if err := show(stdout, changes, n); err != nil {
				return err
			}
			if w.count != 0 && n == w.count {
				return nil
			}
			n++
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// place is the path of the cache.
func (w *watch) place() string {
	if strings.Contains(w.name, "/") {
		return w.name
	}
	return filepath.Join(w.dir.shown(), w.name)
}

// read reads the caches and compares them with the last read.
func (w *watch) read(stderr io.Writer) ([]change, error) {
	var rows []*stats
	var err error
	if w.name == "" {
		rows, err = w.dir.allStats(stderr, w.with)
	} else {
		var s *stats
		if s, err = w.dir.stats(w.name, w.with); err == nil {
			rows = []*stats{s}
		}
	}
	now := map[[16]byte]*stats{}
	changes := make([]change, len(rows))
	for k, s := range rows {
		changes[k] = newChange(s, w.before[s.uuid])
		now[s.uuid] = s
	}
	maps.DeleteFunc(w.with.tracks, func(uuid [16]byte, _ *advise.Track) bool { return now[uuid] == nil })
	w.before = now
	return changes, err
}

// lines writes a line for each cache and interval. The first read has no interval.
func (w *watch) lines(stdout io.Writer, changes []change, n uint64) error {
	var b bytes.Buffer
	if n == 0 {
		writeLine(&b, watchColumns.Titles())
	}
	for _, c := range changes {
		if c.before == nil {
			continue
		}
		if w.rows > 0 && w.rows%headingEvery == 0 && isTerminal(stdout) {
			writeLine(&b, watchColumns.Titles())
		}
		writeLine(&b, watchColumns.Cells(c))
		w.rows++
	}
	_, err := stdout.Write(b.Bytes())
	return err
}

// writeLine writes all cells but the last on the right of their columns.
func writeLine(b *bytes.Buffer, cells []string) {
	for k, width := range widths {
		fmt.Fprintf(b, "%*s ", width, cells[k])
	}
	fmt.Fprintf(b, " %s\n", cells[len(widths)])
}

// object is the JSON of a cache and an interval: the stats and the change.
func (c change) object() table.Object {
	o := c.now.object()
	for _, f := range watchColumns.Object(c) {
		if !o.Has(f.Name) {
			o.Add(f.Name, f.Value)
		}
	}
	return o
}

// objects writes a JSON object in a line for each cache and interval.
func (w *watch) objects(stdout io.Writer, changes []change, _ uint64) error {
	for _, c := range changes {
		if c.before == nil {
			continue
		}
		line, err := json.Marshal(c.object())
		if err != nil {
			return err
		}
		if _, err := stdout.Write(append(table.Escaped(line), '\n')); err != nil {
			return err
		}
	}
	return nil
}
