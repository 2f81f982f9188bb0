package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// gcFlags is the command line of gc.
type gcFlags struct {
	dirFlag
	yes       bool
	olderThan time.Duration
	json      bool
	now       time.Time
}

// candidate is a cache that gc has probed.
type candidate struct {
	found
	unused  bool
	removed bool
	verdict string
}

var gcColumns = table.Columns[*candidate]{
	table.Shown("name", "name", "of the cache; disk/DEVICE-INODE-SESSION: control part of a disk cache",
		func(c *candidate) any { return c.name() }),
	table.InJSON("path", "of its file", func(c *candidate) any { return c.Path }),
	table.Shown("allocated_bytes", "memory", "bytes that it uses",
		func(c *candidate) any { return table.Bytes(c.Allocated) }),
	table.Shown("clients_live", "clients", "live clients", func(c *candidate) any { return c.users }),
	table.Shown("created", "created", "when, in local time (JSON: UTC)",
		func(c *candidate) any { return c.known(table.Moment(c.Created)) }),
	table.Shown("unused", "unused", "a verified segment that no process has attached",
		func(c *candidate) any { return c.unused }),
	table.Shown("removed", "removed", "whether it was removed", func(c *candidate) any { return c.removed }),
	table.Shown("verdict", "verdict", "why, or why not", func(c *candidate) any { return c.verdict }),
}

func (c *candidate) name() string {
	if c.Control {
		return filepath.Join("disk", filepath.Base(c.Path))
	}
	return displayName(&c.Header, c.Path)
}

func newGC() *cobra.Command {
	f := &gcFlags{}
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove the caches that no process uses; without --yes only list them",
		Long: paragraphs(`Finds the named caches that no process uses, and removes them with --yes. Every process that uses a cache
holds a lock on it. The kernel frees the lock when the process ends, by whatever cause. So gc relies on
the kernel, not on pids or ages. gc takes the lock exclusively before it removes a cache, so that no
process can begin to use the cache during the removal. Read-only programs hold no lock: they keep what they have
attached, and do not find the cache again.

A cache that was created for later and never used counts as unused, too. --older-than D leaves out
caches created less than D ago, and those of another version, whose age is unknown. It only narrows what
gc removes: no age makes a cache unused. gc removes unused caches of other versions of stocached, but never
a file that does not verify as a segment of this user (stocached rm NAME does that). Caches without a name
end with their last process.

Killed programs that shared a disk cache leave its control part in memory, a few MiB. gc removes those that no
process uses, too. The file on the disk keeps its samples, and its next user makes a control part from it.`,
			gcColumns.Explain("OUTPUT, a line for each cache; with --json an array"),
			exitStatus(exitNotFound, exitPermission)),
		Args: arguments(0, 0, "none; stocached rm NAME removes one cache"),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.olderThan < 0 {
				return usage("--older-than %v is below 0", f.olderThan)
			}
			if err := f.exists(); err != nil {
				return err
			}
			f.now = time.Now()
			return f.run(c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f.add(c)
	c.Flags().BoolVar(&f.yes, "yes", false, "remove them")
	c.Flags().DurationVar(&f.olderThan, "older-than", 0, "leave out caches created less than this ago, such as 24h")
	jsonFlag(c, &f.json)
	return c
}

func (f *gcFlags) run(stdout, stderr io.Writer) error {
	listed, err := shm.List(f.dir)
	if err != nil {
		return err
	}
	controls, err := shm.ListControls(f.dir)
	if err != nil {
		return err
	}
	failed := failures{stderr: stderr}
	var unused, memory uint64
	var rows []*candidate
	for _, l := range append(listed, controls...) {
		c := &candidate{found: found{Listed: l}}
		if f.judge(c); c.gone {
			continue
		}
		rows = append(rows, c)
		if !c.unused {
			continue
		}
		if unused, memory = unused+1, memory+c.Allocated; !f.yes {
			continue
		}
		if err := c.remove(); err != nil {
			c.verdict = "not removed: " + err.Error()
			failed.add(err)
		}
	}
	if err := gcColumns.Rows(stdout, rows, f.json); err != nil {
		return err
	}
	switch {
	case f.json:
	case unused == 0:
		fmt.Fprintf(stderr, "nothing to remove in %s\n", f.shown())
	case !f.yes:
		fmt.Fprintf(stderr, "nothing was removed: %d unused, %v in all; stocached gc --yes removes them\n", unused,
			table.Bytes(memory))
	}
	return failed.first
}

// judge says whether a cache is unused.
func (f *gcFlags) judge(c *candidate) {
	if c.probe(); c.inUse == nil {
		c.verdict = "left alone: " + c.problem
		return
	}
	age := f.now.Sub(c.Created)
	switch {
	case c.inUse == true:
		c.verdict = "in use"
	case f.olderThan == 0:
		c.unused, c.verdict = true, "would be removed"
	case c.OtherVersion():
		c.verdict = "of another version, so its age is unknown"
	case age < 0:
		c.verdict = "created in the future, by a clock that was set back, so its age is unknown"
	case age < f.olderThan:
		c.verdict = fmt.Sprintf("created %v ago, less than %v", age.Round(time.Second), f.olderThan)
	default:
		c.unused, c.verdict = true, "would be removed"
	}
}

// inUse says whether a process uses the cache. A client always holds the users lock too. Another
// program may hold a record lock or the server lock alone; the cache then counts as used.
func inUse(p shm.Probe) bool { return p.Users || p.Server || len(p.Records) > 0 }

// remove removes an unused cache as its last user would, and notes what has come of it.
func (c *candidate) remove() error {
	removed, err := shm.RemoveUnused(&c.Listed)
	switch {
	case errors.Is(err, shm.ErrNotFound): // another gc, or its user, was faster
		c.unused, c.verdict = false, "removed by another program"
		return nil
	case err != nil:
	case removed:
		c.removed, c.verdict = true, "removed"
	default:
		c.unused, c.verdict = false, "in use by now"
	}
	return err
}
