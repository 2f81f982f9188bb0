package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/cli/table"

	"github.com/spf13/cobra"

	stocclient "github.com/stocached/stocached/client"
)

// pong is the answer of a server.
type pong struct {
	sockets, name string
	seconds       table.Ratio
}

var pongColumns = table.Columns[pong]{
	table.Listed("sockets", "sockets", "folder of the server's sockets", func(p pong) any { return p.sockets }),
	table.Listed("name", "name", "of the requested cache, if any", func(p pong) any { return orNone(p.name) }),
	table.Listed("seconds", "seconds", "until its answer", func(p pong) any { return p.seconds }),
}

func newPing() *cobra.Command {
	var f socketsFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "ping [NAME]",
		Short: "Say whether a server answers clients",
		Long: paragraphs(`Connects to the data socket and greets the server as a client does. With NAME it also asks for that cache.
It succeeds if a client would. It attaches, reads and changes nothing. stocached health asks the server for
its state; ping does what clients do.`,
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
			// a second limit beside the client's own timeout, whose message is better
			ctx, cancel := context.WithTimeout(c.Context(), 2*f.timeout)
			defer cancel()
			began := time.Now()
			if err := stocclient.Ping(ctx, p.name, f.options()); err != nil {
				return asMissing(err)
			}
			p.seconds = table.Ratio(time.Since(began).Seconds())
			if asJSON {
				return table.WriteJSON(c.OutOrStdout(), pongColumns.Object(p))
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s answers on %s after %.1f ms\n", cmp.Or(p.name, "the server"), p.sockets,
				1000*float64(p.seconds))
			return err
		},
	}
	f.add(c)
	jsonFlag(c, &asJSON)
	return c
}
