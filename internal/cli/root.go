// Package cli has the commands of stocached: one file and one test a command, each made by a
// function such as newLs.
//
// Run (root.go) executes a command line. Flags that several commands share are in *_flag.go files
// and flags.go, exit codes in exit.go, and output in package table. A command that inspects a cache
// opens it read-only, and does not become its client. The tests start real servers and clients as
// processes: served_*_test.go. Only cmd/stocached imports this package.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Run executes one command line and returns the exit code of the program.
func Run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	checkHelp(root)
	started := false
	guardAll(root, &started)
	c, err := root.ExecuteC()
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
	case !started: // cobra refused the command line
		err = usageError{err}
		fallthrough
	default:
		complain(stderr, err)
	}
	code := exitCode(err)
	if code == exitUsage {
		fmt.Fprintf(stderr, "%s --help says more\n", c.CommandPath())
	}
	return code
}

// complain writes a message for people. Its text, such as the name of another user's file, cannot
// control a terminal.
func complain(stderr io.Writer, about any) {
	fmt.Fprintf(stderr, "stocached: %s\n", control.Printable(fmt.Sprint(about), '\n', '\t'))
}

// guardAll guards the work of all commands below c, and records when it has started.
func guardAll(c *cobra.Command, started *bool) {
	for _, c := range c.Commands() {
		if work := c.RunE; work != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				*started = true
				return guard(func() error { return work(c, args) })
			}
		}
		guardAll(c, started)
	}
}

// completeNoFiles has shells offer no files for commands that do not say what they offer.
func completeNoFiles(c *cobra.Command) {
	for _, c := range c.Commands() {
		if c.ValidArgsFunction == nil {
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
		completeNoFiles(c)
	}
}

// guard turns a fault in mapped memory into an error. When another process truncates a mapped file,
// its pages vanish, and a command must survive that. The setting holds for one goroutine only, so
// work MUST NOT read caches from others.
func guard(work func() error) (err error) {
	if source.Access("", func() { err = work() }) != nil {
		err = fmt.Errorf("%w: another process truncated it; remove it and create it again", shm.ErrFormat)
	}
	return err
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stocached",
		Short: "One cache of training samples for all processes of a machine",
		Long: `stocached keeps the samples of a dataset in shared memory, once for all processes of a machine. These commands
create caches, and inspect and remove them while programs use them. They need no daemon and disturb no
program.

NAME is the name of a cache of this user (a file in ` + shm.DefaultDir() + `; --dir for another directory), or,
with a slash, a path. A cache without a name is called stocached:xxxxxxxx, as ls shows it, or by its path
/proc/PID/fd/N.

Commands print data for people, in tables and with sizes in units of 1024, or with --json for programs: one
object or one array, numbers as bytes and seconds, unknown values as null. No field ever changes its meaning.

` + exitStatus(),
		Version:           version,
		PersistentPreRunE: checkFlags,
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	fitHelp(root)
	root.AddCommand(newCreate(), newLs(), newStats(), newInspect(), newVerify(), newRm(), newGC(), newPack(),
		newSource(), newServe(), newReload(), newConfig(), newDoctor(), newWarm(), newHealth(), newTrace(), newSimulate(),
		newAdvise(), newTop(), newWeb(), newMan(), newVersion())
	completeNoFiles(root)
	return root
}

// addCompletion adds cobra's command that prints scripts for shells. It needs root's output to be
// set. Unlike cobra, it refuses unknown shells.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, err := root.Find([]string{"completion"})
	if err != nil {
		panic(err) // it was just added
	}
	var shells []string
	for _, shell := range c.Commands() {
		shells = append(shells, shell.Name())
	}
	known := strings.Join(shells, ", ")
	c.Args, c.ValidArgsFunction = arguments(0, 0, "one of "+known), cobra.NoFileCompletions
	c.RunE = func(*cobra.Command, []string) error { return usage("completion needs a shell: %s", known) }
}

// checkHelp has cobra's command help refuse a command that does not exist.
func checkHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	c, _, err := root.Find([]string{"help"})
	if err != nil {
		panic(err) // it was just added
	}
	c.Args = func(_ *cobra.Command, args []string) error {
		_, _, err := root.Find(args)
		return err
	}
}

// paragraphs joins the parts of a help text.
func paragraphs(parts ...string) string { return strings.Join(parts, "\n\n") }
