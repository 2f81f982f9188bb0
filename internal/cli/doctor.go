package cli

import (
	"fmt"
	"slices"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"

	"github.com/spf13/cobra"
)

var doctorColumns = table.Columns[server.Examined]{
	table.Shown("cache", "cache", "of the configuration", func(e server.Examined) any { return orNone(e.Cache) }),
	table.Shown("tier", "tier", "its number in the list of tiers, from 0",
		func(e server.Examined) any { return table.If(e.Cache != "", table.Count(e.Tier)) }),
	table.Shown("where", "where", "this machine, or the server that was asked", func(e server.Examined) any { return e.Where }),
	table.Shown("what", "what", "a part of the machine, a setting of the server, or what it does", func(e server.Examined) any { return e.What }),
	table.Shown("answer", "answer", "what it is", func(e server.Examined) any { return e.Answer }),
	table.Shown("change", "change", "what to change; nothing: it is good",
		func(e server.Examined) any { return orNone(e.Change) }),
}

func newDoctor() *cobra.Command {
	f, asJSON := configFlag{}, false
	c := &cobra.Command{
		Use:   "doctor [-c config.yaml]",
		Short: "Say what should be changed on this machine and on the servers of tiers",
		Long: paragraphs(`Looks at this machine: the versions of stocached and of the kernel, huge pages, the memory and the part of
/dev/shm that are left for caches, how many files a process may open, and stocached-decode.`,
			`With a configuration it also asks the servers of all its tiers: whether they answer, user, password and TLS,
version, memory, policy, saving, the state of the cluster, and whether other nodes have the same data. It opens the
sources of these caches, and changes nothing. It fails if something should be changed.`,
			doctorColumns.Explain("OUTPUT"), exitStatus(exitNotFound, exitPermission)),
		Example: `  stocached doctor -c config.yaml`,
		Args:    arguments(0, 0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			m, err := thisMachine("/")
			if err != nil {
				return err
			}
			var tiers []server.Examined
			if f.path != "" {
				configuration, err := config.Load(f.path)
				if err != nil {
					return err
				}
				o := configuration.Options(nil)
				m.needsHelper = slices.ContainsFunc(o.Caches, func(c server.CacheOptions) bool { return c.Decode != nil })
				if tiers, err = server.Examine(c.Context(), o); err != nil {
					return err
				}
			}
			found := append(m.examine(), tiers...)
			if err := doctorColumns.Rows(c.OutOrStdout(), found, asJSON); err != nil {
				return err
			}
			changes := 0
			for _, one := range found {
				if one.Change != "" {
					changes++
				}
			}
			if changes > 0 {
				err = fmt.Errorf("%s should be changed", table.Plural(changes, "setting"))
			}
			return err
		},
	}
	f.flag(c, "")
	jsonFlag(c, &asJSON)
	return c
}
