package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// dirFlag is the directory of the names in a command line. "": shm.DefaultDir.
type dirFlag struct{ dir string }

func (d *dirFlag) add(c *cobra.Command) {
	c.Flags().StringVar(&d.dir, "dir", "", "directory of the caches, on a tmpfs (default "+shm.DefaultDir()+")")
	must(c.MarkFlagDirname("dir"))
}

// memfdName begins the names of caches without a name; the first bytes of the uuid follow. A file
// name of a cache contains no colon.
const memfdName = "stocached:"

func isUnnamed(name string) bool {
	return strings.HasPrefix(name, memfdName) && !strings.Contains(name, "/")
}

// displayName is the name that ls shows and that commands accept, relative to the directory.
func displayName(h *shm.Header, path string) string {
	if h.Flags&shm.FlagNamed == 0 && h.UUID != [16]byte{} {
		return fmt.Sprintf("%s%x", memfdName, h.UUID[:4])
	}
	return filepath.Base(path)
}

// path turns a name into what package shm accepts.
func (d *dirFlag) path(name string) (string, error) {
	if d.dir == "" || strings.Contains(name, "/") {
		return name, nil
	}
	if err := shm.CheckName(name); err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Join(d.dir, name))
}

// open attaches read-only, without a client record, so that no byte of the segment changes.
func (d *dirFlag) open(name string) (*shm.Segment, error) {
	if isUnnamed(name) {
		return openUnnamed(name)
	}
	path, err := d.path(name)
	if err != nil {
		return nil, err
	}
	return shm.Open(path, shm.OpenOptions{ReadOnly: true})
}

func openUnnamed(name string) (*shm.Segment, error) {
	unnamed, err := shm.ListUnnamed()
	if err != nil {
		return nil, err
	}
	var match []shm.Listed
	for _, l := range unnamed {
		if l.Err == nil && displayName(&l.Header, l.Path) == name {
			match = append(match, l)
		}
	}
	switch len(match) {
	case 0:
		return nil, fmt.Errorf("%w: %s: no process that this user may inspect has it; stocached ls shows "+
			"the caches", shm.ErrNotFound, name)
	case 1:
		return shm.Open(match[0].Path, shm.OpenOptions{ReadOnly: true, UUID: &match[0].UUID})
	}
	return nil, usage("%s: %d caches have this name; give a path: %s and %s, ...", name, len(match), match[0].Path,
		match[1].Path)
}

// attach makes a read-only client of a segment, for the calls of package cache. It has no client
// record.
func attach(s *shm.Segment) (*cache.Cache, error) {
	c, err := cache.Attach(s, cache.Options{})
	if err == nil && !c.ReadOnly() {
		panic("a command became a client of the cache that it inspects")
	}
	return c, err
}

// with calls use with a cache and a reader of it.
func (d *dirFlag) with(name string, use func(seg *shm.Segment, reader *cache.Cache) error) error {
	seg, err := d.open(name)
	if err != nil {
		return err
	}
	defer seg.Close()
	reader, err := attach(seg)
	if err != nil {
		return err
	}
	defer reader.Close()
	return use(seg, reader)
}

// counted calls use with a reader of a cache and its counters. If err is not nil, they are as far as counted could read
// them. If another process truncates the segment during the call, counted returns an error.
func counted(s *shm.Segment, use func(reader *cache.Cache, sums cache.Stats, err error) error) error {
	return guard(func() error {
		reader, err := attach(s)
		if err != nil {
			return err
		}
		defer reader.Close()
		sums, err := reader.Stats()
		return use(reader, sums, err)
	})
}

// all finds the named caches of the directory. Without --dir it also finds those without a name.
func (d *dirFlag) all() ([]shm.Listed, error) {
	found, err := shm.List(d.dir)
	if err != nil || d.dir != "" {
		return found, err
	}
	unnamed, err := shm.ListUnnamed()
	return append(found, unnamed...), err
}

// exists returns an error if there is no directory --dir. That of this user may come later.
func (d *dirFlag) exists() error {
	if d.dir == "" {
		return nil
	}
	if _, err := os.Stat(d.dir); err != nil {
		return fmt.Errorf("--dir: %w; leave it out for the caches in %s", err, shm.DefaultDir())
	}
	return nil
}

// check returns an error if there is no directory --dir, or if its caches cannot be listed.
func (d *dirFlag) check() error {
	if err := d.exists(); err != nil {
		return err
	}
	_, err := d.all()
	return err
}

// complete offers the names of caches to the shell. All arguments are names; max is the most of
// them, 0: any number.
func (d *dirFlag) complete(max int, unnamed bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if max > 0 && len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if strings.Contains(prefix, "/") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		found, err := d.all()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for k := range found {
			l := &found[k]
			name := displayName(&l.Header, l.Path)
			known := shm.CheckName(name) == nil || unnamed && strings.HasPrefix(name, memfdName)
			if known && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// jsonFlag adds --json.
func jsonFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

// arguments checks the number of arguments; max -1: any number.
func arguments(least, max int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || max >= 0 && len(args) > max {
			return usage("%s, expected %s", table.Plural(len(args), "argument"), what)
		}
		return nil
	}
}

// shown is the directory for people.
func (d *dirFlag) shown() string { return cmp.Or(d.dir, shm.DefaultDir()) }
