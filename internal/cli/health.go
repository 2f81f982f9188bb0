package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/cli/table"

	"github.com/spf13/cobra"
)

// health is the state that a server reports.
type health struct {
	sockets string
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
	table.Listed("seconds", "seconds", "until both answers", func(h health) any { return h.seconds }),
}

func (h health) problem() string { return cmp.Or(h.alive, h.ready) }

func newHealth() *cobra.Command {
	var f socketsFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "health",
		Short: "Say whether a server is healthy and serves clients",
		Long: paragraphs(`Asks the admin socket for /healthz (it is alive) and /readyz (it serves clients, and is neither starting
nor ending), as a supervisor would. It fails unless both succeed. It lists the caches that the server left
out because their source or segment is damaged, reads of sources that fail, with the kind and the last error,
memory that is short, caches whose file another program removed, nodes of tiers that do not answer, and a reload that was not applied. These are no
failure: the server still serves.
stocached ping tests the other socket, which clients use.`,
			healthColumns.Explain("OUTPUT of --json; else a line for people"),
			exitStatus(exitPermission, exitNoServer)),
		Example: `  stocached health --timeout 1s || systemctl --user restart stocached`,
		Args: func(c *cobra.Command, args []string) error {
			return errors.Join(arguments(0, 0, "none; stocached ping NAME asks for a cache")(c, args), f.check())
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
			defer cancel()
			h, err := f.health(ctx)
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
				_, err = fmt.Fprintf(c.OutOrStdout(), "the server on %s %s\n", h.sockets, state)
				for _, one := range all {
					complain(c.ErrOrStderr(), one)
				}
			}
			if err == nil && h.problem() != "" {
				err = fmt.Errorf("the server on %s: %s", h.sockets, h.problem())
			}
			return err
		},
	}
	f.add(c)
	jsonFlag(c, &asJSON)
	return c
}

// health asks a server for its state.
func (f *socketsFlag) health(ctx context.Context) (health, error) {
	h := health{sockets: f.path()}
	began := time.Now()
	for path, problem := range map[string]*string{"/healthz": &h.alive, "/readyz": &h.ready} {
		status, body, err := admin{f.dir}.get(ctx, path)
		if err != nil {
			return h, err
		}
		if status != http.StatusOK {
			*problem = complaint(status, body)
		}
		for line := range strings.Lines(string(body)) {
			about, one, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
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
	h.seconds = table.Ratio(time.Since(began).Seconds())
	return h, nil
}
