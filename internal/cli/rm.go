package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// removal is a cache that rm has removed or left.
type removal struct {
	name      string
	path      string
	allocated any // bytes; nil: unknown
	clients   any // count, live at that moment; nil: unknown
	removed   bool
	reason    string
}

var rmColumns = table.Columns[removal]{
	table.Shown("name", "name", "as given", func(r removal) any { return r.name }),
	table.InJSON("path", "of the file", func(r removal) any { return r.path }),
	table.Shown("removed", "removed", "whether it was", func(r removal) any { return r.removed }),
	table.Shown("allocated_bytes", "memory", "bytes that it used; freed now, or when the last process that has it ends",
		func(r removal) any { return r.allocated }),
	table.Shown("clients_live", "clients", "live clients: they keep it until they end",
		func(r removal) any { return r.clients }),
	table.InJSON("reason", "why it was not removed; on stderr for people", func(r removal) any { return r.reason }),
}

func newRm() *cobra.Command {
	var dir dirFlag
	var sockets socketsFlag
	var asJSON bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove named caches",
		Long: paragraphs(`Removes caches by name or path. Programs that use a cache keep it, and the memory is freed when the last of
them ends. New programs do not find it. rm removes no cache that a server fills: take it out of the server's
configuration and run stocached reload, which removes it. rm removes only segments of this user: regular files that begin as a
segment, even if the rest does not verify. A cache without a name cannot be removed: it ends with its last
process.`,
			rmColumns.Explain("OUTPUT, a line for each cache; with --json an array"),
			`rm tries each NAME; the exit status is that of the first failure.`,
			`With --for it cleans up behind a server that ends: for so long it removes each NAME as soon as no server has
it, and then the sockets and their folder, unless a server answers there. What does not exist is no failure.`,
			exitStatus(exitNotFound, exitPermission)),
		Args: arguments(1, -1,
			"one or more names of caches; stocached ls shows them, stocached gc removes unused ones"),
		ValidArgsFunction: dir.complete(0, false),
		RunE: func(c *cobra.Command, args []string) error {
			failed := failures{stderr: c.ErrOrStderr()}
			if c.Flags().Changed("for") {
				return dir.cleanUp(c, patience, sockets.path(), args)
			}
			results := make([]removal, len(args))
			for k, name := range args {
				var err error
				if results[k], err = dir.remove(name); err != nil {
					failed.add(err)
				}
			}
			if err := rmColumns.Rows(c.OutOrStdout(), results, asJSON); err != nil {
				return err
			}
			return failed.first
		},
	}
	dir.add(c)
	sockets.folder(c)
	c.Flags().DurationVar(&patience, "for", 0, "go on for so long, as a server ends, such as 45s")
	jsonFlag(c, &asJSON)
	return c
}

// cleanUp removes caches and sockets behind a server that ends, for so long.
func (d *dirFlag) cleanUp(c *cobra.Command, patience time.Duration, sockets string, names []string) error {
	ctx, stop := interruptible(c.Context())
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	left := map[string]error{}
	for {
		for _, name := range names {
			r, err := d.remove(name)
			if r.removed {
				fmt.Fprintf(c.OutOrStdout(), "removed %s\n", r.path)
			}
			if left[name] = err; errors.Is(err, shm.ErrNotFound) {
				left[name] = nil
			}
		}
		left[sockets] = removeSockets(ctx, sockets)
		select {
		case <-ctx.Done():
			return errors.Join(slices.Collect(maps.Values(left))...)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// removeSockets removes the sockets of a server that has ended, what it noted, and their folder.
func removeSockets(ctx context.Context, dir string) error {
	for _, name := range []string{control.DataSocket, control.AdminSocket} {
		if c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, name)); err == nil {
			c.Close()
			return fmt.Errorf("%w answers on %s; end it first", server.ErrServed, filepath.Join(dir, name))
		} else if ctx.Err() != nil {
			return nil // nothing is known
		}
	}
	var errs []error
	for _, name := range []string{control.DataSocket, control.AdminSocket, leftFile, ""} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove removes one cache.
func (d *dirFlag) remove(name string) (removal, error) {
	r := removal{name: name}
	fail := func(err error) (removal, error) {
		r.reason = err.Error()
		return r, err
	}
	if strings.HasPrefix(name, memfdName) || strings.HasPrefix(name, "/proc/") {
		return fail(fmt.Errorf("%w: %s has no name to remove; it ends with the last process that has it (stocached "+
			"ls shows them)", shm.ErrInvalid, name))
	}
	path, err := d.path(name)
	if err != nil {
		return fail(err)
	}
	r.path = path
	// The size and the clients, as far as they can be read. A segment that does not verify is
	// removed too.
	if s, err := shm.Open(path, shm.OpenOptions{ReadOnly: true}); err == nil {
		r.path, r.allocated = s.Path(), allocated(s)
		if p, err := s.ProbeLocks(); err == nil {
			r.clients = table.Count(len(p.Records))
		}
		s.Close()
	}
	if err := shm.Unlink(path); err != nil {
		return fail(err)
	}
	r.removed = true
	return r, nil
}
