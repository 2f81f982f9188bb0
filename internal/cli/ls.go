package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// found is a cache in a directory or in /proc, looked into as far as it lets.
type found struct {
	shm.Listed
	users   any // count of live clients; nil: unknown
	inUse   any // bool: a process holds the users lock; nil: unknown
	problem string
	gone    bool // since it was listed
}

var lsColumns = table.Columns[*found]{
	table.Shown("name", "name", "of the cache; stocached:xxxxxxxx for one without a name",
		func(f *found) any { return displayName(&f.Header, f.Path) }),
	table.Listed("path", "path", "of its file; /proc/PID/fd/N without a name", func(f *found) any { return f.Path }),
	table.Shown("samples", "samples", "of the dataset", func(f *found) any { return f.known(table.Count(f.Samples)) }),
	table.Listed("slots", "slots", "samples that have room; none in a variable-size cache",
		func(f *found) any { return f.known(slots(&f.Geometry)) }),
	table.Shown("slots_fraction", "fraction", "slots / samples: the hit rate once it is full",
		func(f *found) any { return f.known(slotsFraction(&f.Geometry)) }),
	table.Shown("segment_bytes", "size", "the most that it can take",
		func(f *found) any { return table.Bytes(f.FileBytes) }),
	table.Shown("allocated_bytes", "memory", "what it takes now",
		func(f *found) any { return table.Bytes(f.Allocated) }),
	table.Shown("clients_live", "clients", "live clients; those that only read are not counted",
		func(f *found) any { return f.users }),
	table.Shown("in_use", "used", "somebody has it attached; no: stocached gc would remove it",
		func(f *found) any { return f.inUse }),
	table.Shown("processes", "processes",
		"number of processes that have a cache without a name, among those that this user may look into",
		func(f *found) any { return f.processes() }),
	table.Listed("unlink", "unlink", "never: it stays until it is removed; last: it goes with its last user",
		func(f *found) any { return f.known(unlinkOf(&f.Header)) }),
	table.Listed("pids", "pids", "ids of these processes", func(f *found) any { return table.List[int](f.PIDs) }),
	table.Listed("created", "created", "when, in local time (JSON: UTC)",
		func(f *found) any { return f.known(table.Moment(f.Created)) }),
	table.Listed("fingerprint", "fingerprint", "of dataset and transform",
		func(f *found) any { return f.known(f.Fingerprint) }),
	table.InJSON("uuid", "of the segment", func(f *found) any { return f.known(fmt.Sprintf("%x", f.UUID)) }),
	table.InJSON("problem", "why it cannot be attached to; on stderr for people",
		func(f *found) any { return f.problem }),
}

// processes counts those that have a cache without a name. nil: the cache has a name.
func (f *found) processes() any {
	if len(f.PIDs) == 0 {
		return nil
	}
	return table.Count(len(f.PIDs))
}

// known is v, or nil when the header could not be read.
func (f *found) known(v any) any {
	if f.Err != nil {
		return nil
	}
	return v
}

func newLs() *cobra.Command {
	var dir dirFlag
	var asJSON, long bool
	c := &cobra.Command{
		Use:   "ls [--long]",
		Short: "List the caches of this user",
		Long: paragraphs(`Lists the named caches of this user, and those without a name, which are found through the open files of the processes
that this user may look into. With --dir only the named ones in that directory. --long shows more columns.`,
			lsColumns.Explain("OUTPUT, a line for each cache, in capitals what has a column without --long; with "+
				"--json an array"),
			exitStatus(exitPermission)),
		Args:              arguments(0, 0, "none; stocached stats NAME shows one cache"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			listed, err := dir.all()
			if err != nil {
				return err
			}
			columns := lsColumns
			if long {
				columns = columns.Whole()
			}
			return ls(listed, columns, &dir, asJSON, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	dir.add(c)
	c.Flags().BoolVarP(&long, "long", "l", false,
		"show every column: also path, slots, process ids, time of creation and fingerprint")
	jsonFlag(c, &asJSON)
	return c
}

func ls(listed []shm.Listed, columns table.Columns[*found], dir *dirFlag, asJSON bool, stdout, stderr io.Writer) error {
	var rows []*found
	for _, l := range listed {
		f := &found{Listed: l}
		if f.probe(); f.gone {
			continue
		}
		rows = append(rows, f)
		if f.problem != "" && !asJSON {
			complain(stderr, f.problem)
		}
	}
	if len(rows) == 0 && !asJSON {
		fmt.Fprintf(stderr, "no caches in %s%s; stocached create makes one\n", dir.shown(),
			map[bool]string{true: ", and none without a name"}[dir.dir == ""])
	}
	return columns.Rows(stdout, rows, asJSON)
}

// probe asks the kernel which processes use the cache.
func (f *found) probe() {
	err := f.Err
	var p shm.Probe
	if err == nil {
		p, err = probe(&f.Listed)
	}
	if err != nil {
		f.problem, f.gone = err.Error(), vanished(&f.Listed, err)
		return
	}
	f.users, f.inUse = table.Count(len(p.Records)), inUse(p)
}

// vanished says whether a cache is gone since it was listed, after a look at it failed: its file
// was removed, or the process that had it closed the descriptor, whose number may be another file's
// by now.
func vanished(l *shm.Listed, err error) bool {
	if len(l.PIDs) == 0 || l.Err != nil {
		return errors.Is(err, shm.ErrNotFound)
	}
	link, err := os.Readlink(l.Path)
	return err != nil || link != "/memfd:"+displayName(&l.Header, l.Path)+" (deleted)"
}

// probe asks the kernel which processes use a cache that was found.
func probe(l *shm.Listed) (shm.Probe, error) {
	s, err := shm.Open(l.Path, shm.OpenOptions{ReadOnly: true, UUID: &l.UUID})
	if err != nil {
		return shm.Probe{}, err
	}
	defer s.Close()
	return s.ProbeLocks()
}
