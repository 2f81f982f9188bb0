package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// found is a cache in a directory or in /proc, with what could be read of it.
type found struct {
	shm.Listed
	filled  any // count of samples; nil: unknown
	users   any // count of live clients; nil: unknown
	inUse   any // bool: a process holds the users lock; nil: unknown
	problem string
	gone    bool // it was removed after it was listed
}

var lsColumns = table.Columns[*found]{
	table.Shown("name", "name", "of the cache; stocached:xxxxxxxx for one without a name",
		func(f *found) any { return displayName(&f.Header, f.Path) }),
	table.Listed("path", "path", "of its file; /proc/PID/fd/N without a name", func(f *found) any { return f.Path }),
	table.Shown("samples", "samples", "of the dataset", func(f *found) any { return f.known(table.Count(f.Samples)) }),
	table.Listed("slots", "slots", "samples that fit; none in a variable-size cache",
		func(f *found) any { return f.known(slots(&f.Geometry)) }),
	table.Shown("slots_fraction", "fraction", "slots / samples: the hit rate once it is full",
		func(f *found) any { return f.known(slotsFraction(&f.Geometry)) }),
	table.Shown("ready", "filled", "samples in the cache now", func(f *found) any { return f.filled }),
	table.Shown("segment_bytes", "size", "the most bytes of the file",
		func(f *found) any { return table.Bytes(f.FileBytes) }),
	table.Shown("allocated_bytes", "memory", "bytes that it uses now",
		func(f *found) any { return table.Bytes(f.Allocated) }),
	table.Shown("clients_live", "clients", "live clients, without read-only ones",
		func(f *found) any { return f.users }),
	table.Shown("in_use", "used", "a process has it attached; no: stocached gc would remove it",
		func(f *found) any { return f.inUse }),
	table.Shown("program", "program", "of a cache without a name: process id and program of one that has it, and "+
		"how many more there are",
		func(f *found) any { return f.program() }),
	table.InJSON("processes", "number of processes that have a cache without a name, as far as this user may inspect them",
		func(f *found) any { return table.If(len(f.PIDs) > 0, table.Count(len(f.PIDs))) }),
	table.Listed("unlink", "unlink", "never: it stays until it is removed; last: its last user removes it",
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

// program names a process that has a cache without a name; nil: the cache has a name.
func (f *found) program() any {
	if len(f.PIDs) == 0 {
		return nil
	}
	shown := f.PIDs[0]
	for _, pid := range f.PIDs {
		if slices.Contains(wordsOf(pid), "--on-demand") { // it has the samples, for the others
			shown = pid
			break
		}
	}
	text := fmt.Sprintf("%d %s", shown, programOf(shown))
	if more := len(f.PIDs) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// wordsOf returns the command line of a process; [""]: it has ended.
func wordsOf(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
}

// programOf names the program of a process: of an interpreter also its script, of a server on demand also who started it.
func programOf(pid int) string {
	words := wordsOf(pid)
	name := filepath.Base(words[0])
	if by := slices.Index(words, "--by"); by > 0 && by+1 < len(words) && slices.Contains(words, "--on-demand") {
		return fmt.Sprintf("%s serve --on-demand, started by %s", name, words[by+1])
	}
	if len(words) > 1 && strings.HasPrefix(name, "python") && !strings.HasPrefix(words[1], "-") {
		name += " " + filepath.Base(words[1])
	}
	return name
}

// known returns v, or nil if the header could not be read.
func (f *found) known(v any) any {
	return table.If(f.Err == nil, v)
}

func newLs() *cobra.Command {
	var dir dirFlag
	var asJSON, long bool
	c := &cobra.Command{
		Use:   "ls [--long]",
		Short: "List the caches of this user",
		Long: paragraphs(`Lists the named caches of this user, and those without a name. It finds the latter through the open files
of the processes that this user may inspect. With --dir only the named ones in that directory. --long shows
more columns. Lines on stderr name servers on demand, and the folders of other users, such as root, in which
something lies.`,
			lsColumns.Explain("OUTPUT, a line for each cache, capitals: columns without --long; with "+
				"--json an array"),
			exitStatus(exitNotFound, exitPermission)),
		Args: arguments(0, 0, "none; stocached stats NAME shows one cache"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := dir.exists(); err != nil {
				return err
			}
			listed, err := dir.all()
			if err != nil {
				return err
			}
			columns := lsColumns
			if long {
				columns = columns.Whole()
			}
			if err := ls(listed, columns, &dir, asJSON, c.OutOrStdout(), c.ErrOrStderr()); err != nil || asJSON || dir.dir != "" {
				return err
			}
			sayOnDemand(c.ErrOrStderr())
			if others := shm.OtherUsers(); len(others) > 0 {
				fmt.Fprintf(c.ErrOrStderr(), "other users have caches too, in %s; each user lists their own\n",
					strings.Join(others, ", "))
			}
			return nil
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
		if f.probe(); f.problem == "" && !f.gone {
			f.count()
		}
		if f.gone {
			continue
		}
		rows = append(rows, f)
		if f.problem != "" && !asJSON {
			complain(stderr, f.problem)
		}
	}
	if len(rows) == 0 && !asJSON {
		unnamed := ""
		if dir.dir == "" {
			unnamed = ", and none without a name"
		}
		fmt.Fprintf(stderr, "no caches in %s%s; stocached create makes one\n", dir.shown(), unnamed)
	}
	return columns.Rows(stdout, rows, asJSON)
}

// probe asks the kernel which processes use the cache.
func (f *found) probe() {
	if f.Err != nil {
		f.problem = f.Err.Error()
	}
	if f.Err != nil && !f.OtherVersion() {
		f.gone = vanished(&f.Listed, f.Err)
		return
	}
	p, err := f.Probe()
	if err != nil {
		f.problem, f.gone = err.Error(), vanished(&f.Listed, err)
		return
	}
	f.users, f.inUse = f.known(table.Count(len(p.Records))), inUse(p)
}

// count counts the samples, unless the cache has gone since.
func (f *found) count() {
	seg, err := shm.Open(f.Path, shm.OpenOptions{ReadOnly: true, UUID: &f.UUID})
	if err != nil {
		f.gone = vanished(&f.Listed, err)
		return
	}
	defer seg.Close()
	err = counted(seg, func(_ *cache.Cache, sums cache.Stats, err error) error {
		f.filled = table.Count(sums.Ready)
		return err
	})
	if err != nil {
		f.problem = fmt.Sprintf("%s: %v", f.Path, err)
	}
}

// vanished says whether a cache has gone since it was listed, after a failed open. Its file was
// removed, or the process that had it closed the descriptor. The number of that descriptor may now
// refer to another file.
func vanished(l *shm.Listed, err error) bool {
	if len(l.PIDs) == 0 || l.Err != nil {
		return errors.Is(err, shm.ErrNotFound)
	}
	link, err := os.Readlink(l.Path)
	return err != nil || link != "/memfd:"+displayName(&l.Header, l.Path)+" (deleted)"
}
