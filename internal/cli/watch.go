package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/stocached/stocached/shm"
)

// watch is stats --watch.
type watch struct {
	dir      *dirFlag
	name     string // "": all caches
	interval time.Duration
	count    uint64 // intervals to show; 0: no end
	json     bool
	server   *asker

	before map[[16]byte]*stats // the last look at each segment
}

// change is a cache now and an interval ago.
type change struct {
	now    *stats
	before *stats // nil: not looked at before
}

var watchColumns = columns[change]{
	{"time", "time", false, "of the look, local (JSON: UTC)", func(c change) any { return clock(c.now.at) }},
	{"interval_seconds", "", false, "since the look before", func(c change) any { return c.seconds() }},
	{"name", "name", false, "of the cache", func(c change) any { return c.now.name }},
	{"ready", "filled", false, "samples in the cache now", func(c change) any { return count(c.now.Ready) }},
	{"cached_fraction", "cached", false, "filled / samples", func(c change) any { return fraction(c.now.Ready, c.now.Samples) }},
	{"interval_hit_rate", "hit rate", false, "hits / (hits + misses) in the interval; none: nothing was asked for",
		func(c change) any { return c.hitRate() }},
	{"hits_per_second", "hits/s", false, "in the interval", func(c change) any { return perSecond(c.rate(hits)) }},
	{"misses_per_second", "misses/s", false, "in the interval", func(c change) any { return perSecond(c.rate(misses)) }},
	{"stored_per_second", "sets/s", false, "samples stored in the interval", func(c change) any { return perSecond(c.rate(stored)) }},
	{"stored_bytes_per_second", "stored", false, "their bytes", func(c change) any { return bytesPerSecond(c.rate(storedBytes)) }},
	{"interval_busy", "races", false, "races lost in the interval", func(c change) any { return c.difference(busy) }},
	{"interval_full", "full", false, "sets refused for lack of room in the interval", func(c change) any { return c.difference(full) }},
	{"allocated_bytes", "memory", false, "pages that the file has now", func(c change) any { return byteCount(c.now.AllocatedBytes) }},
	{"clients_live", "live", false, "live clients", func(c change) any { return count(c.now.ClientsLive) }},
}

func hits(s *stats) uint64        { return s.Hits }
func misses(s *stats) uint64      { return s.Misses }
func stored(s *stats) uint64      { return s.Stored }
func storedBytes(s *stats) uint64 { return s.StoredBytes }
func busy(s *stats) uint64        { return s.Busy }
func full(s *stats) uint64        { return s.Full }

// seconds of the interval; unknown at the first look.
func (c change) seconds() ratio {
	if c.before == nil {
		return ratio(math.NaN())
	}
	return ratio(c.now.at.Sub(c.before.at).Seconds())
}

// rate of a counter in the interval.
func (c change) rate(counter func(*stats) uint64) float64 {
	if c.before == nil {
		return math.NaN()
	}
	return float64(counter(c.now)-counter(c.before)) / float64(c.seconds())
}

// difference of a counter; nil at the first look.
func (c change) difference(counter func(*stats) uint64) any {
	if c.before == nil {
		return nil
	}
	return count(counter(c.now) - counter(c.before))
}

func (c change) hitRate() ratio {
	if c.before == nil {
		return ratio(math.NaN())
	}
	h, m := c.now.Hits-c.before.Hits, c.now.Misses-c.before.Misses
	return fraction(h, h+m)
}

// run looks, waits and looks again. It waits for a cache that is not made yet. An interrupt is the usual end: no error. So is the end of the cache.
func (w *watch) run(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	show := w.lines
	switch {
	case w.json:
		show = w.objects
	case isTerminal(stdout):
		show = w.screen
	}
	w.before = map[[16]byte]*stats{}
	waiting := false
	for n := uint64(0); ; {
		changes, err := w.look(stderr)
		switch {
		case errors.Is(err, shm.ErrNotFound) && n > 0:
			fmt.Fprintf(stderr, "%s is gone\n", w.name)
			return nil
		case errors.Is(err, shm.ErrNotFound) && w.name != "" && !isUnnamed(w.name): // nobody makes a cache with such a name, which is random
			if !waiting {
				fmt.Fprintf(stderr, "no cache %s yet; waiting until a program makes it\n", w.place())
			}
			waiting = true
		case err != nil && !errors.Is(err, errReported):
			return err
		default:
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

// place is where the cache is looked for.
func (w *watch) place() string {
	if strings.Contains(w.name, "/") {
		return w.name
	}
	return filepath.Join(w.dir.shown(), w.name)
}

// look compares the caches with what they were at the last look.
func (w *watch) look(stderr io.Writer) ([]change, error) {
	var rows []*stats
	var err error
	if w.name == "" {
		server := w.server
		if !w.json {
			server = nil
		}
		rows, err = w.dir.allStats(stderr, server)
	} else {
		var s *stats
		if s, err = w.dir.stats(w.name, w.server); err == nil {
			rows = []*stats{s}
		}
	}
	now := map[[16]byte]*stats{}
	changes := make([]change, len(rows))
	for k, s := range rows {
		changes[k] = change{s, w.before[s.uuid]}
		now[s.uuid] = s
	}
	w.before = now
	return changes, err
}

// lines writes, for a pipe, a line for each cache and interval under one heading. The first look is no interval.
func (w *watch) lines(stdout io.Writer, changes []change, n uint64) error {
	var b bytes.Buffer
	if n == 0 {
		b.WriteString(pad(watchColumns.titles()))
	}
	for _, c := range changes {
		if c.before != nil {
			b.WriteString(pad(watchColumns.cells(c)))
		}
	}
	_, err := stdout.Write(b.Bytes())
	return err
}

// pad makes columns of a fixed width, since lines come one by one: names on the left, numbers right.
func pad(cells []string) string {
	var b strings.Builder
	for k, cell := range cells {
		width := 10
		if k == 1 {
			width = 20
		}
		space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(cell)))
		if k < 2 {
			b.WriteString(cell + space + "  ")
		} else {
			b.WriteString(space + cell + "  ")
		}
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// objects writes a JSON object in a line for each cache and interval: the stats and the change.
func (w *watch) objects(stdout io.Writer, changes []change, _ uint64) error {
	for _, c := range changes {
		if c.before == nil {
			continue
		}
		o := c.now.object()
		for _, f := range watchColumns.object(c) {
			if !o.has(f.name) {
				o.add(f.name, f.value)
			}
		}
		line, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if _, err := stdout.Write(append(escaped(line), '\n')); err != nil {
			return err
		}
	}
	return nil
}
