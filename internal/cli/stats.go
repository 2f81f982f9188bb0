package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/cli/table"
	cacheserver "github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
)

// stats is one cache at one moment.
type stats struct {
	cache.Stats
	name string
	uuid [16]byte
	path string
	at   time.Time
	shm.Geometry

	program any                 // server on demand that has the cache; nil: none has
	clients []client            // if they were asked for: the client table
	epochs  *cacheserver.Epochs // epochs of a track or from a server that answers; nil: unknown
	server  *cacheserver.Status // answer of the server that has the cache; nil: no answer
	silent  error               // why a server that has the cache did not answer
}

var statsColumns = table.Columns[*stats]{
	table.Shown("name", "name", "of the cache", func(s *stats) any { return s.name }),
	table.Listed("path", "path", "of its file; none without a name", func(s *stats) any { return s.path }),
	table.Listed("program", "program", "server on demand that has it, who started that, and the name in its log",
		func(s *stats) any { return s.program }),
	table.Shown("samples", "samples", "of the dataset", func(s *stats) any { return table.Count(s.Samples) }),
	table.Shown("slots", "slots", "samples that fit; none in a variable-size cache",
		func(s *stats) any { return slots(&s.Geometry) }),
	table.Shown("ready", "filled", "samples in the cache now", func(s *stats) any { return table.Count(s.Ready) }),
	table.Shown("cached_fraction", "cached", "filled / samples: the hit rate to expect of an epoch that begins now",
		func(s *stats) any { return table.Fraction(s.Ready, s.Samples) }),
	table.Listed("slots_fraction", "once full", "slots / samples: the hit rate to expect once it is full",
		func(s *stats) any { return slotsFraction(&s.Geometry) }),
	table.Shown("hits", "hits", "samples found by get, view or gather, since creation",
		func(s *stats) any { return table.Count(s.Hits) }),
	table.Shown("misses", "misses", "samples asked for and not there, since creation",
		func(s *stats) any { return table.Count(s.Misses) }),
	table.Shown("hit_rate", "hit rate", "hits / (hits + misses), since creation",
		func(s *stats) any { return table.Fraction(s.Hits, s.Hits+s.Misses) }),
	table.Shown("stored", "sets", "samples stored, overwrites too",
		func(s *stats) any { return table.Count(s.Stored) }),
	table.Listed("exists", "exists", "sets of a sample that was there already",
		func(s *stats) any { return table.Count(s.Exists) }),
	table.Shown("busy", "races lost", "sets while another client was filling the sample",
		func(s *stats) any { return table.Count(s.Busy) }),
	table.Shown("full", "full", "sets refused: no slot, arena space or memory, and the policy let no sample go",
		func(s *stats) any { return table.Count(s.Full) }),
	table.Listed("out", "out", "sets of a sample that can have no slot (first-indices)",
		func(s *stats) any { return table.Count(s.Out) }),
	table.Listed("passed", "passed", "samples outside the schema that a wrapper let through uncached",
		func(s *stats) any { return table.Count(s.Passed) }),
	table.Listed("policy", "policy", "which samples stay",
		func(s *stats) any { return s.Policy.String() }),
	table.Shown("evicted", "evicted", "samples that went for others",
		func(s *stats) any { return table.Count(s.Evicted) }),
	table.Listed("replaced", "replaced",
		"of these, in the last epoch: about as many reads as there are samples",
		func(s *stats) any { return table.If(s.Hits+s.Misses >= s.Samples, table.Count(s.Replaced)) }),
	table.Listed("known_costs", "known costs",
		"samples whose load was measured, cached or not: with the policy cost all, else some",
		func(s *stats) any {
			return table.If(s.Costs.Known > 0 || s.Policy == shm.PolicyCost, table.Count(s.Costs.Known))
		}),
	table.Shown("saved_seconds", "saves",
		"time to load the cached samples once, as measured: an epoch need not spend it;\nwith the policy cost only, as the "+
			"next one",
		func(s *stats) any { return s.ofCosts(table.Duration(s.Costs.SavedSeconds)) }),
	table.Shown("first_come_saved_seconds", "random saves",
		"time to load as many bytes of random samples once, on average: what this cache would save\nwith the policy "+
			"first-come",
		func(s *stats) any { return s.ofCosts(table.Duration(s.Costs.FirstComeSeconds())) }),
	table.Shown("ready_bytes", "bytes", "of the samples in the cache now",
		func(s *stats) any { return table.Bytes(s.ReadyBytes) }),
	table.Listed("stored_bytes", "bytes stored", "of all samples ever stored",
		func(s *stats) any { return table.Bytes(s.StoredBytes) }),
	table.Shown("allocated_bytes", "memory", "pages that the file has now, tables included",
		func(s *stats) any { return table.Bytes(s.AllocatedBytes) }),
	table.Listed("segment_bytes", "size", "the most bytes of the file",
		func(s *stats) any { return table.Bytes(s.SegmentBytes) }),
	table.Listed("payload_bytes", "room", "bytes for samples: slots, or the arena of a variable-size cache",
		func(s *stats) any { return table.Bytes(s.PayloadBytes) }),
	table.Listed("arena_next_bytes", "arena used", "of the arena, since the last clear; if it evicts, slots that are taken",
		func(s *stats) any { return s.arena(table.Bytes(s.ArenaNextBytes)) }),
	table.Listed("arena_lost_bytes", "arena lost",
		"of these, bytes that no longer belong to a sample; a clear frees them; none if the arena evicts",
		func(s *stats) any { return table.If(!s.Chains(), s.arena(table.Bytes(s.ArenaLostBytes))) }),
	table.Listed("arena_ends_bytes", "slot ends",
		"of these, unused ends of slots, and slots that are being filled; only if the arena evicts, as the next two",
		func(s *stats) any { return ofChains(&s.Geometry, table.Bytes(s.ArenaLostBytes)) }),
	table.Listed("arena_free_bytes", "free slots", "bytes of slots that no sample has",
		func(s *stats) any { return ofChains(&s.Geometry, table.Bytes(s.PayloadBytes-s.ArenaNextBytes)) }),
	table.Listed("slot_bytes", "slot", "bytes of a slot; a sample takes several",
		func(s *stats) any { return slotBytes(&s.Geometry) }),
	table.Shown("clients_live", "live", "live clients", func(s *stats) any { return table.Count(s.ClientsLive) }),
	table.Shown("clients_ended", "ended", "client records of clients that have ended, each as it should or by a kill",
		func(s *stats) any { return table.Count(s.ClientsEnded) }),
	table.Listed("recovered", "recovered", "reclaimed claims of dead clients",
		func(s *stats) any { return table.Count(s.Recovered) }),
	table.Listed("aborted", "aborted", "claims given up by their own client",
		func(s *stats) any { return table.Count(s.Aborted) }),
	table.Listed("retried", "retried", "copies made again because the sample changed during the copy",
		func(s *stats) any { return table.Count(s.Retried) }),
	table.Listed("lost", "lost", "publishes refused: always 0, unless there is a bug or another program wrote",
		func(s *stats) any { return table.Count(s.Lost) }),
	table.Listed("corrupt", "corrupt",
		"invalid words, lengths or checksums: always 0 (stocached verify finds them)",
		func(s *stats) any { return table.Count(s.Corrupt) }),
	table.Listed("clears", "clears", "times that the cache was emptied",
		func(s *stats) any { return table.Count(s.Clears) }),
}

// ofCosts is a value that only a cache with the policy cost has: with others not each load is measured.
func (s *stats) ofCosts(v any) any {
	return table.If(s.Policy == shm.PolicyCost, v)
}

func (s *stats) arena(v any) any {
	return table.If(s.Variable(), v)
}

// matters are the fields of the lines without --all.
var matters = []string{"name", "program", "ready", "cached_fraction", "hit_rate", "allocated_bytes", "clients_live"}

// troubles are fields of further lines without --all, if they are not 0.
var troubles = []string{"full", "lost", "corrupt"}

// brief are the columns without --all.
func (s *stats) brief() table.Columns[*stats] {
	columns := slices.DeleteFunc(slices.Clone(statsColumns), func(c table.Column[*stats]) bool {
		return !slices.Contains(matters, c.Field) && (!slices.Contains(troubles, c.Field) || c.Value(s) == table.Count(0))
	})
	if s.program == nil {
		columns = slices.DeleteFunc(columns, func(c table.Column[*stats]) bool { return c.Field == "program" })
	}
	if s.silent != nil {
		columns = append(columns, serverColumns[:1]...)
	}
	if s.server != nil {
		columns = append(columns, troublesOf(s.server)...)
	} else if room := s.withoutMemory(); room > 0 {
		columns = append(columns, table.Listed("", "failing", "", func(*stats) any {
			return fmt.Sprintf("memory is short: samples found none, and there is room for %v more", room)
		}))
	}
	return columns
}

// withoutMemory are the bytes for which the cache has room, if sets have been refused, or samples have gone, for lack of
// memory. As in short_memory.py. A server knows more.
func (s *stats) withoutMemory() table.Bytes {
	if s.Full+s.Evicted == 0 || s.Clears > 0 || s.Ready == 0 {
		return 0
	}
	room, least := s.SegmentBytes-min(s.AllocatedBytes, s.SegmentBytes), s.SegmentBytes/16
	if s.Variable() {
		least = max(least, 64*s.ReadyBytes/s.Ready)
	}
	// Slots that are not full, and one sample larger than the rest, leave room too.
	if room < least || s.free() >= max(room, memory.FillDivisor*s.ReadyBytes/s.Ready) {
		return 0
	}
	return table.Bytes(room)
}

// free are the bytes that caches may still take where this one lies.
func (s *stats) free() uint64 {
	free := uint64(memory.Unlimited)
	if space, err := memory.Usable(0); err == nil {
		free = space.Left
	}
	var fs unix.Statfs_t
	if s.path != "" && unix.Statfs(s.path, &fs) == nil && fs.Blocks > 0 {
		free = min(free, fs.Bavail*uint64(fs.Bsize))
	}
	return free
}

func newStats() *cobra.Command {
	var dir dirFlag
	var asJSON, watching, all bool
	w := watch{}
	server := &asker{}
	c := &cobra.Command{
		Use:   "stats [NAME] [--watch]",
		Short: "Show what a cache holds and its counters",
		Long: paragraphs(`Shows the counters of a cache. Its clients keep them in the segment itself, so stats asks no process and
disturbs none. With NAME it shows the five numbers that matter: filled, cached, hit rate, memory and live. It
adds full, lost and corrupt if they are not 0, memory that is short, a server that does not answer, and a line for each
trouble of one that does: reads that fail, are tried again or are stuck, tiers. --all shows all lines.
Without NAME: a line for each cache of this user. stats adds up the counters of all
clients, past ones included, one by one while they still count. Read-only clients are not counted.`,
			statsColumns.Explain("OUTPUT, capitals: columns without NAME; with --json an object, "+
				"without NAME an array"),
			`A server that has the cache compares what an epoch should do with what the last one did: its hits, and with
the policy cost the times of its loads. So a wrong prediction is seen: an epoch that reads other samples than
each one once, or loads whose times have changed. Policies whose samples go all the time (lru, fifo, clock,
lfu, random) are simulated. stats NAME --watch --json, stocached top and stocached web compare epochs without a
server too. Otherwise the lines are missing, and null in JSON.`,
			comparedColumns.Explain("OUTPUT, predicted and observed"),
			`If a server has the cache, stats asks it for its counters too, with NAME or with --json. It waits for the
answer at most 0.2 seconds longer; nothing above depends on it. Without a server the lines below are
missing, and null in JSON.`,
			serverColumns.Explain("OUTPUT of a server"),
			`With --watch it goes on, every --interval, until it is interrupted, reaches --count, or the cache is gone.
It waits for a cache that does not exist yet. It prints a line for each cache and interval, and on a terminal
their heading again after 20 lines. With --json a line is an object with the fields above and below.`,
			watchColumns.Explain("OUTPUT of --watch"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission, exitVersion)),
		Example: `  stocached stats imagenet --watch
  stocached stats imagenet --watch --interval 10s --json >> hits.jsonl`,
		Args: func(c *cobra.Command, args []string) error {
			if !watching && (c.Flags().Changed("interval") || c.Flags().Changed("count")) {
				return usage("--interval and --count need --watch")
			}
			if w.interval <= 0 {
				return usage("interval %v is not above 0", w.interval)
			}
			if all && (watching || len(args) == 0) {
				return usage("--all needs NAME, and goes without --watch")
			}
			if len(args) == 1 && args[0] == "" {
				return usage("the name is empty; leave it out for all caches")
			}
			return arguments(0, 1, "the name of a cache, or none for all")(c, args)
		},
		ValidArgsFunction: dir.complete(1, true),
		RunE: func(c *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			} else if err := dir.exists(); err != nil {
				return err
			}
			stdout, stderr := c.OutOrStdout(), c.ErrOrStderr()
			if watching {
				w.dir, w.name, w.json = &dir, name, asJSON
				if asJSON {
					w.with.server = server // lines have no columns for it, nor for epochs
				}
				if asJSON && name != "" {
					w.with.tracks = map[[16]byte]*advise.Track{}
				}
				return w.run(c.Context(), stdout, stderr)
			}
			if name != "" {
				return dir.showStats(name, server, all, asJSON, stdout)
			}
			return dir.listStats(server, asJSON, stdout, stderr)
		},
	}
	dir.add(c)
	server.sockets.folder(c)
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&all, "all", false, "show all lines, with NAME")
	c.Flags().BoolVar(&watching, "watch", false, "go on, with rates over each interval")
	c.Flags().DurationVar(&w.interval, "interval", time.Second, "time between two reads, with --watch")
	c.Flags().Uint64Var(&w.count, "count", 0, "end after this number of intervals, with --watch (default: go on)")
	return c
}

// showStats shows the counters of one cache.
func (d *dirFlag) showStats(name string, server *asker, all, asJSON bool, stdout io.Writer) error {
	s, err := d.stats(name, extras{server: server})
	if err != nil {
		return err
	}
	if asJSON {
		return table.WriteJSON(stdout, s.object())
	}
	if !all {
		return s.brief().List(stdout, s)
	}
	return s.columns().List(stdout, s)
}

// listStats shows those of all caches.
func (d *dirFlag) listStats(server *asker, asJSON bool, stdout, stderr io.Writer) error {
	if !asJSON {
		server = nil // a table has no columns for it
	}
	rows, err := d.allStats(stderr, extras{server: server})
	switch {
	case err != nil && !errors.Is(err, errReported):
		return err
	case asJSON:
		return errors.Join(table.WriteJSON(stdout, objects(rows)), err)
	case len(rows) == 0:
		fmt.Fprintf(stderr, "no caches in %s; stocached create makes one\n", d.shown())
	}
	if d.dir == "" {
		sayOnDemand(stderr)
	}
	return errors.Join(statsColumns.Table(stdout, rows), err)
}

// object is the JSON of a cache. The fields are the same with and without a server.
func (s *stats) object() table.Object {
	return slices.Concat(statsColumns, comparedColumns, serverColumns).Object(s)
}

func objects(rows []*stats) []table.Object {
	objects := make([]table.Object, len(rows))
	for k, s := range rows {
		objects[k] = s.object()
	}
	return objects
}

// extras say what is read beside the counters of a cache.
type extras struct {
	server  *asker                     // to ask a server that has the cache; nil: none is asked
	tracks  map[[16]byte]*advise.Track // by uuid, to compare epochs; nil: none are compared
	compare func(uuid string) bool     // says which of these it compares; nil: all. The others are only followed
	clients bool                       // read the client table
}

// epochs compares the epochs of a cache; nil: it does not.
func (l *extras) epochs(s *stats, seg *shm.Segment, reader *cache.Cache) *cacheserver.Epochs {
	if l.tracks == nil {
		return nil
	}
	track := l.tracks[s.uuid]
	if track == nil {
		track = new(advise.Track)
		l.tracks[s.uuid] = track
	}
	if l.compare != nil && !l.compare(fmt.Sprintf("%x", s.uuid)) {
		track.Look(seg)
		return nil
	}
	return cacheserver.Compared(track.Compare(s.name, seg, reader))
}

// stats reads the counters of one cache and closes it. It keeps nothing open between two reads, so
// that the memory of a removed cache becomes free.
func (d *dirFlag) stats(name string, with extras) (s *stats, err error) {
	seg, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer seg.Close()
	answer := func() (*cacheserver.Status, error) { return nil, nil }
	pid, folder := onDemandOf(seg)
	if with.server != nil {
		probe, err := seg.ProbeLocks()
		if err != nil {
			return nil, err
		}
		if probe.Server { // the server's lock is held: a server exists, even if it is stopped
			server := with.server
			if pid != 0 {
				server = &asker{sockets: socketsFlag{dir: folder}, unnamed: true}
			}
			answer = server.ask(displayName(&seg.Header, seg.Path()), fmt.Sprintf("%x", seg.Header.UUID))
		}
	}
	err = counted(seg, func(reader *cache.Cache, sums cache.Stats, err error) error {
		s = &stats{Stats: sums, name: displayName(&seg.Header, seg.Path()), uuid: seg.Header.UUID, path: seg.Path(),
			at: time.Now(), Geometry: seg.Geometry}
		if pid != 0 {
			s.program = fmt.Sprintf("%d %s", pid, programOf(pid))
		}
		if err != nil {
			return err
		}
		s.epochs = with.epochs(s, seg, reader)
		if with.clients {
			s.clients, err = clientsOf(seg, reader)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if s.server, s.silent = answer(); s.server != nil && s.epochs == nil {
		s.epochs = s.server.Epochs
	}
	if pid != 0 && s.server != nil {
		s.program = fmt.Sprintf("%s; in its log: %s", s.program, s.server.Name)
	}
	return s, nil
}

// allStats reads the counters of all caches. It reports those that fail on stderr, and returns the
// first error.
func (d *dirFlag) allStats(stderr io.Writer, with extras) (rows []*stats, err error) {
	listed, err := d.all()
	if err != nil {
		return nil, err
	}
	failed := failures{stderr: stderr}
	for _, l := range listed {
		var s *stats
		err := l.Err
		if err == nil {
			s, err = d.stats(l.Path, with)
		}
		switch {
		case err == nil:
			rows = append(rows, s)
		case vanished(&l, err):
		default:
			failed.add(err)
		}
	}
	return rows, failed.first
}
