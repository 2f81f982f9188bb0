package cli

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/top"
)

func newTop() *cobra.Command {
	var dir dirFlag
	server := &asker{}
	interval, once := time.Second, false
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch all caches of this user on a terminal",
		Long: paragraphs(`Shows all caches of this user on a terminal, and what changes: hit rate, cached samples, sets and evictions
over time, memory and what is left of it, and clients. An opened cache shows all curves, its clients, and what an
epoch should do beside what the last one did. Numbers are those of stocached stats.`,
			`It needs no server, asks no process and disturbs none. Caches come and go while it runs. It works in any
width from 40 columns on, and over ssh. NO_COLOR=1 turns colours off. If the locale has no UTF-8, curves are
drawn in ASCII. On a terminal without cursor movement (TERM=dumb) it prints one frame after the other.`,
			ofOtherUsers("top"),
			`With --once it prints one frame, to anything: in a file or a pipe with 120 columns, or $COLUMNS. Elsewhere
than on a terminal that is all it can do: use stocached stats --watch, which also has --json.`,
			"KEYS\n"+top.Help(),
			exitStatus(exitNotFound, exitPermission)),
		Example: `  stocached top
  stocached top --once`,
		Args: func(c *cobra.Command, args []string) error {
			if interval <= 0 {
				return usage("interval %v is not above 0", interval)
			}
			return arguments(0, 0, "none; enter opens a cache")(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := dir.check(); err != nil {
				return err
			}
			stdout := c.OutOrStdout()
			m := top.New(top.Options{Look: newLooker(server, dir.dir).look, Interval: interval,
				ASCII: !utf8Locale(os.Getenv)})
			if m.Resize(terminalSize(stdout)); !isTerminal(stdout) {
				m.Resize(printedWidth(os.Getenv), 0)
			}
			if !once && !isTerminal(stdout) {
				return usage("the output is no terminal: --once prints one frame, and stocached stats --watch a line for each " +
					"interval")
			}
			if once || dumb(os.Getenv("TERM")) {
				ctx, stop := interruptible(c.Context())
				defer stop()
				m.Plain = true
				return m.Print(ctx, stdout, once)
			}
			return m.Run(stdout)
		},
	}
	dir.add(c)
	server.sockets.folder(c)
	c.Flags().DurationVar(&interval, "interval", interval, "time between two reads")
	c.Flags().BoolVar(&once, "once", false, "print one frame, after an interval, and end")
	return c
}

// printedWidth is the width of a frame in a file or a pipe.
func printedWidth(env func(string) string) int {
	if n, err := strconv.Atoi(env("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 120
}

// ofOtherUsers is what the help of a command says of caches that it does not show.
func ofOtherUsers(command string) string {
	return "A cache is for one user, also where root asks. For those of another user: sudo -u USER stocached " + command + "."
}

// utf8Locale says whether the locale has characters beyond ASCII. Without any setting, terminals of today do.
func utf8Locale(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(env(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}
