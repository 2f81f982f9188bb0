package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/cli/table"

	"github.com/spf13/cobra"
)

// health is the state that a server reports, and whether it answers clients.
type health struct {
	sockets string
	name    string // name of one cache; "": all
	alive   string // "": it is alive; else why not
	ready   string
	leftOut table.List[string]
	failing table.List[string]
	tiers   table.List[string]
	reload  table.List[string]
	seconds table.Ratio
}

var healthColumns = table.Columns[health]{
	table.Listed("sockets", "sockets", "folder of the server's sockets", func(h health) any { return h.sockets }),
	table.Listed("name", "name", "of the requested cache, if any", func(h health) any { return orNone(h.name) }),
	table.Listed("healthy", "healthy", "it answers /healthz", func(h health) any { return h.alive == "" }),
	table.Listed("ready", "ready", "it answers /readyz: it serves clients",
		func(h health) any { return h.ready == "" }),
	table.Listed("problem", "problem", "what is wrong, in its words", func(h health) any { return h.problem() }),
	table.Listed("left_out", "left out", "caches of its configuration that it left out, each with the reason",
		func(h health) any { return h.leftOut }),
	table.Listed("failing", "failing", "reads of sources that fail, by cache and kind (unavailable, denied, changed, missing,\n"+
		"damaged, decode, descriptors, other), memory that is short, samples that the cache refuses (store), and caches\n"+
		"whose file is gone",
		func(h health) any { return h.failing }),
	table.Listed("tiers", "tiers", "nodes of tiers that it leaves out, and what else is wrong with tiers",
		func(h health) any { return h.tiers }),
	table.Listed("reload", "reload", "why the last reload of the configuration was not applied",
		func(h health) any { return h.reload }),
	table.Listed("seconds", "seconds", "until all answers", func(h health) any { return h.seconds }),
}

func (h health) problem() string { return cmp.Or(h.alive, h.ready) }

func newHealth() *cobra.Command {
	var f socketsFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "health [NAME]",
		Short: "Say whether a server, or one of its caches, is healthy and serves clients",
		Long: paragraphs(`Asks the admin socket for /healthz (it is alive) and /readyz (it serves clients, and is neither starting
nor ending), as a supervisor would. Then it greets the server on the data socket, as a client does, and with
NAME asks for that cache. It attaches, reads and changes nothing. It fails unless all succeed. It lists the caches that the server left
out because their source or segment is damaged, reads of sources that fail, with the kind and the last error,
memory that is short, caches whose file another program removed, nodes of tiers that do not answer, and a reload
that was not applied. These are no failure: the server still serves. With NAME it lists those of that cache. Without NAME and
--sockets, lines on stderr say what fails at servers on demand, and which there are if no other server answers.`,
			healthColumns.Explain("OUTPUT of --json; else a line for people"),
			exitStatus(exitNotFound, exitPermission, exitNoServer)),
		Example: `  stocached health --timeout 1s || systemctl --user restart stocached
  until stocached health pets --timeout 1s; do sleep 1; done`,
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
			h, err := f.health(c.Context(), strings.Join(args, ""))
			if !asJSON && len(args) == 0 && f.dir == "" {
				for _, line := range onDemandServers() {
					if err != nil || strings.Contains(line, onDemandFails) {
						fmt.Fprintln(c.ErrOrStderr(), line)
					}
				}
			}
			if err != nil {
				return err
			}
			if asJSON {
				err = table.WriteJSON(c.OutOrStdout(), healthColumns.Object(h))
			} else if h.problem() == "" {
				state := "is well and serves"
				all := slices.Concat(h.leftOut, h.failing, h.tiers, h.reload)
				if len(all) > 0 {
					state = "serves, but not everything is well"
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s (%.1f ms)\n", h.subject(), state, 1000*float64(h.seconds))
				for _, one := range all {
					complain(c.ErrOrStderr(), one)
				}
			}
			if err == nil && h.problem() != "" {
				err = fmt.Errorf("%s: %s", h.subject(), h.problem())
			}
			return err
		},
	}
	f.add(c)
	jsonFlag(c, &asJSON)
	return c
}

// subject is what the health is of.
func (h health) subject() string {
	if h.name != "" {
		return "cache " + h.name + " of the server on " + h.sockets
	}
	return "the server on " + h.sockets
}

// health asks a server for its state, and as a client does for a cache; "": for none.
func (f *socketsFlag) health(ctx context.Context, name string) (health, error) {
	// The client has the same timeout, and a better message.
	ctx, cancel := context.WithTimeout(ctx, 2*f.timeout)
	defer cancel()
	h := health{sockets: f.path(), name: name}
	began := time.Now()
	if err := f.askState(ctx, &h); err != nil {
		return h, err
	}
	if h.problem() == "" {
		if err := stocclient.Ping(ctx, name, f.options()); err != nil {
			return h, asMissing(err)
		}
	}
	h.seconds = table.Ratio(time.Since(began).Seconds())
	return h, nil
}

// askState asks the admin socket.
func (f *socketsFlag) askState(ctx context.Context, h *health) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	for path, problem := range map[string]*string{"/healthz": &h.alive, "/readyz": &h.ready} {
		status, body, err := admin{f.dir}.get(ctx, path)
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			*problem = complaint(status, body)
		}
		for line := range strings.Lines(string(body)) {
			about, one, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			if h.name != "" && !strings.HasPrefix(one, "cache "+h.name+": ") {
				continue
			}
			switch about {
			case "left out":
				h.leftOut = append(h.leftOut, one)
			case "tier":
				h.tiers = append(h.tiers, one)
			case "failing":
				h.failing = append(h.failing, one)
			case "reload":
				h.reload = append(h.reload, one)
			}
		}
	}
	return nil
}
