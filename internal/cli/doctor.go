package cli

import (
	"fmt"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"

	"github.com/spf13/cobra"
)

var doctorColumns = table.Columns[server.Examined]{
	table.Shown("cache", "cache", "of the configuration", func(e server.Examined) any { return e.Cache }),
	table.Shown("tier", "tier", "its number in the list of tiers, from 0",
		func(e server.Examined) any { return table.Count(e.Tier) }),
	table.Shown("where", "server", "that was asked", func(e server.Examined) any { return e.Where }),
	table.Shown("what", "what", "a setting of the server, or what it does", func(e server.Examined) any { return e.What }),
	table.Shown("answer", "answer", "of the server", func(e server.Examined) any { return e.Answer }),
	table.Shown("change", "change", "what to change; nothing: it is good",
		func(e server.Examined) any { return orNone(e.Change) }),
}

func newDoctor() *cobra.Command {
	f, asJSON := configFlag{}, false
	c := &cobra.Command{
		Use:   "doctor -c config.yaml",
		Short: "Ask the servers of tiers what should be changed",
		Long: paragraphs(`Asks the servers of all tiers of a configuration: whether they answer, user, password and TLS, 
version, memory, policy, saving, the state of the cluster, and whether other nodes have the same data. It opens the
sources of these caches, and changes nothing. It fails if something should be changed.`,
			doctorColumns.Explain("OUTPUT"), exitStatus(exitNotFound, exitPermission)),
		Example:           `  stocached doctor -c config.yaml`,
		Args:              arguments(0, 0, "none"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			configuration, err := config.Load(f.path)
			if err != nil {
				return err
			}
			found, err := server.Examine(c.Context(), configuration.Options(nil))
			if err != nil {
				return err
			}
			if err := doctorColumns.Rows(c.OutOrStdout(), found, asJSON); err != nil {
				return err
			}
			changes := 0
			for _, one := range found {
				if one.Change != "" {
					changes++
				}
			}
			switch {
			case len(found) == 0 && !asJSON:
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: no cache has tiers\n", f.path)
			case changes > 0:
				err = fmt.Errorf("%s should be changed", table.Plural(changes, "setting"))
			}
			return err
		},
	}
	f.add(c)
	jsonFlag(c, &asJSON)
	return c
}
