package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/cli/table"

	"github.com/spf13/cobra"

	stocclient "github.com/stocached/stocached/client"
)

// pong is a server that answered.
type pong struct {
	sockets, name string
	seconds       table.Ratio
}

var pongColumns = table.Columns[pong]{
	table.Listed("sockets", "sockets", "folder of the server's sockets", func(p pong) any { return p.sockets }),
	table.Listed("name", "name", "of the cache that it was asked for, if any", func(p pong) any {
		if p.name == "" {
			return nil
		}
		return p.name
	}),
	table.Listed("seconds", "seconds", "until it had answered", func(p pong) any { return p.seconds }),
}

func newPing() *cobra.Command {
	var f socketsFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "ping [NAME]",
		Short: "Say whether a server answers clients",
		Long: paragraphs(`Connects to the data socket as a client does, says hello, and with NAME asks for that cache too: it succeeds when a client
would. Nothing is attached, read or changed. stocached health asks the server how it is; this tries what clients do.`,
			pongColumns.Explain("OUTPUT of --json; else a line for people"),
			exitStatus(exitNotFound, exitPermission, exitNoServer)),
		Example: `  until stocached ping pets --timeout 1s; do sleep 1; done
  stocached ping --json`,
		Args: func(c *cobra.Command, args []string) error {
			if err := arguments(0, 1, "the name of a cache, or none")(c, args); err != nil {
				return err
			}
			if len(args) == 1 {
				if err := checkServed(args[0]); err != nil {
					return err
				}
			}
			return f.check()
		},
		ValidArgsFunction: f.complete,
		RunE: func(c *cobra.Command, args []string) error {
			p := pong{sockets: f.path()}
			if len(args) == 1 {
				p.name = args[0]
			}
			// a net under the client's own timeout, whose message is better
			ctx, cancel := context.WithTimeout(c.Context(), 2*f.timeout)
			defer cancel()
			began := time.Now()
			if err := stocclient.Ping(ctx, p.name, f.options()); err != nil {
				return refused(err)
			}
			p.seconds = table.Ratio(time.Since(began).Seconds())
			if asJSON {
				return table.WriteJSON(c.OutOrStdout(), pongColumns.Object(p))
			}
			what := "the server"
			if p.name != "" {
				what = p.name
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s answers on %s after %.1f ms\n", what, p.sockets,
				1000*float64(p.seconds))
			return err
		},
	}
	f.add(c)
	jsonFlag(c, &asJSON)
	return c
}
