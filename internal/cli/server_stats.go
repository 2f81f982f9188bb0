package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/cli/table"
	cacheserver "github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
)

// serverColumns follow statsColumns when a server has the cache.
var serverColumns = table.Columns[*stats]{
	table.Listed("server", "server", "answers, or why it does not; none: no server has the cache",
		func(s *stats) any { return s.answered() }),
	table.Listed("connected", "connected", "clients that could ask it for samples now",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Connected) })),
	table.Listed("queue_depth", "queue", "samples that clients wait for and that are not being read yet",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Queued) })),
	table.Listed("stuck_reads", "stuck reads", "reads of the source that were given up and have not returned",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Stuck) })),
	table.Listed("source_reads", "source reads", "samples that it read from the source since it started",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Reads) })),
	table.Listed("source_read_bytes", "bytes read", "of these", fromServer(func(f *cacheserver.Status) any {
		return table.Bytes(f.ReadBytes)
	})),
	table.Listed("shared_reads", "shared reads", "fetches that needed no read of the source though the sample had\nno slot",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Shared) })),
	table.Listed("source_errors", "source errors", "reads that failed, after all tries, by kind",
		fromServer(func(f *cacheserver.Status) any { return errorCounts(f.Errors) })),
	table.Listed("source_retries", "retries", "tries that failed and were followed by another, by kind",
		fromServer(func(f *cacheserver.Status) any { return errorCounts(f.Retries) })),
	table.Listed("retrying_reads", "retrying", "reads that have failed and will be tried again",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Retrying) })),
	table.Listed("failures", "failures", "what fails now, with the last error of each kind",
		fromServer(func(f *cacheserver.Status) any { return failingNow(f.Failures) })),
	table.Listed("bad_samples", "bad samples", "that do not decode, of those read so far (decode: {bad_samples: skip})",
		fromServer(func(f *cacheserver.Status) any { return table.Count(f.Bad) })),
	table.Listed("store", "store", "with decode: what the cache keeps, decoded pictures or encoded files",
		fromServer(func(f *cacheserver.Status) any { return orNone(f.Store) })),
	table.Listed("store_reason", "because", "why the server chose it (decode: {store: auto})",
		fromServer(func(f *cacheserver.Status) any { return orNone(f.Why) })),
	table.Listed("remote", "remote", "requests to the server of a remote source, bytes received, and second requests "+
		"for slow reads (hedged), with those that were faster (hedges_won)",
		fromServer(func(f *cacheserver.Status) any { return table.If(f.Remote != nil, (*remoteCounts)(f.Remote)) })),
	table.Listed("tiers", "tiers", "samples that each tier had and had not, and what else it counts",
		fromServer(func(f *cacheserver.Status) any { return table.If(len(f.Tiers) > 0, tierCounts(f.Tiers)) })),
	table.Listed("fill_mean_seconds", "fill mean", "from the start of a sample's read until it was stored",
		fromServer(func(f *cacheserver.Status) any { return duration(f.FillMean) })),
	table.Listed("fill_p99_seconds", "fill p99", "99 of 100 took no longer; estimated from a histogram",
		fromServer(func(f *cacheserver.Status) any { return duration(f.FillP99) })),
	table.Listed("adopted", "adopted", "the cache was warm when the server started",
		fromServer(func(f *cacheserver.Status) any { return f.Adopted })),
}

// troublesOf has a column for each thing that is wrong at the server now.
func troublesOf(f *cacheserver.Status) (columns table.Columns[*stats]) {
	f.Troubles(f.Tiers, func(what, line string) {
		columns = append(columns, table.Listed("", what, "", func(*stats) any { return source.OneLine(line) }))
	})
	return columns
}

// orNone is a text; nil: there is none.
func orNone(text string) any { return table.If(text != "", text) }

func fromServer(value func(*cacheserver.Status) any) func(*stats) any {
	return of(func(s *stats) *cacheserver.Status { return s.server }, value)
}

// answered is, for people, whether the server answered; nil: there is no server.
func (s *stats) answered() any {
	switch {
	case s.server != nil:
		return "answers"
	case s.silent != nil:
		return s.silent.Error()
	}
	return nil
}

// columns returns the columns that apply to the cache.
func (s *stats) columns() table.Columns[*stats] {
	columns := statsColumns
	if s.epochs != nil {
		columns = slices.Concat(columns, s.compared())
	}
	switch {
	case s.server != nil:
		return slices.Concat(columns, serverColumns)
	case s.silent != nil:
		return slices.Concat(columns, serverColumns[:1])
	}
	return columns
}

// Stats must not wait for a server, because the segment has its own counters. serverDeadline is the
// longest wait for a server after stats has read the segment. Tests change it.
var serverDeadline = 200 * time.Millisecond

// serverRest is how long stats sends no request after a server has not answered.
const serverRest = 5 * time.Second

// asker asks a server about its caches.
type asker struct {
	sockets socketsFlag
	unnamed bool  // the server is one on demand, whose caches have names of its own
	silent  error // why the last request got no answer
	until   time.Time
}

// ask sends a request about a cache, and returns a function that waits for the answer.
func (a *asker) ask(name, uuid string) (answer func() (*cacheserver.Status, error)) {
	if a.silent != nil && time.Now().Before(a.until) {
		return func() (*cacheserver.Status, error) { return nil, a.silent }
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // ends the request if the caller never waits
	got := make(chan error, 1)
	var f cacheserver.Status
	go func() {
		if !a.unnamed {
			got <- admin{a.sockets.dir}.json(ctx, "/v1/caches/"+url.PathEscape(name), &f)
			return
		}
		var all []cacheserver.Status
		err := admin{a.sockets.dir}.json(ctx, "/v1/caches", &all)
		if k := slices.IndexFunc(all, func(one cacheserver.Status) bool { return one.UUID == uuid }); k >= 0 {
			f = all[k]
		}
		got <- err
	}()
	return func() (*cacheserver.Status, error) {
		defer cancel()
		var err error
		select {
		case err = <-got:
		case <-time.After(serverDeadline):
			err = stocclient.ErrNoServer
		}
		if errors.Is(err, stocclient.ErrNoServer) {
			err = fmt.Errorf("a server has the cache, but none answers on %s: it is stopped or overloaded, or its "+
				"sockets are elsewhere (--sockets)", a.sockets.path())
		}
		switch {
		case err != nil:
			a.silent, a.until = err, time.Now().Add(serverRest)
			return nil, err
		case f.UUID != uuid:
			return nil, fmt.Errorf("the server on %s has another cache of that name; give --sockets for the "+
				"right server",
				a.sockets.path())
		}
		return &f, nil
	}
}

// remoteCounts are the counters of a remote source.
type remoteCounts cacheserver.Remote

func (r *remoteCounts) String() string {
	return fmt.Sprintf("%v requests, %v, hedged %v (%v faster)", table.Count(r.Requests), table.Bytes(r.Bytes),
		table.Count(r.Hedged), table.Count(r.HedgesWon))
}

// tierCounts are the counters of the tiers of a cache, from fast to slow.
type tierCounts []tier.Status

// String has the counts that every tier has, and those others that are not 0.
func (all tierCounts) String() string {
	var texts []string
	for _, t := range all {
		parts := []string{fmt.Sprintf("%s: hits %v, misses %v, writes %v", t.Kind, table.Count(t.Hits),
			table.Count(t.Misses), table.Count(t.Writes))}
		for _, one := range []struct {
			name string
			n    uint64
		}{{"skipped", t.LeftOut}, {"dropped", t.Dropped}, {"refused", t.Refused}, {"poisoned", t.Poisoned},
			{"openings", t.Openings}, {"waits", t.Waited}, {"given up", t.GaveUp}} {
			if one.n > 0 {
				parts = append(parts, fmt.Sprintf("%s %v", one.name, table.Count(one.n)))
			}
		}
		for _, n := range t.Nodes {
			if n.LeftOut {
				parts = append(parts, fmt.Sprintf("%s is left out: %s", n.Address, n.Because))
			}
		}
		texts = append(texts, strings.Join(append(parts, t.Notes...), ", "))
	}
	return strings.Join(texts, "; ")
}

// failingNow is what fails now.
type failingNow []wrap.Failing

func (all failingNow) String() string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return cmp.Or(strings.Join(texts, "; "), "none")
}

// errorCounts are numbers of errors by kind.
type errorCounts map[string]uint64

func (e errorCounts) String() string {
	parts := []string{}
	for _, kind := range slices.Sorted(maps.Keys(e)) {
		parts = append(parts, fmt.Sprintf("%s %v", kind, table.Count(e[kind])))
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}
