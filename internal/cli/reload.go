package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
)

var reloadColumns = table.Columns[reloaded]{
	table.Shown("result", "result", "applied; partly: some caches failed; refused: nothing has changed",
		func(r reloaded) any { return r.Result }),
	table.Shown("file", "file", "the configuration of the server", func(r reloaded) any { return r.File }),
	table.Shown("added", "added", "caches that the server has now", func(r reloaded) any { return table.List[string](r.Added) }),
	table.Shown("changed", "changed", "caches with other settings, or replaced by empty ones",
		func(r reloaded) any { return table.List[string](r.Changed) }),
	table.Shown("removed", "removed", "caches that the file no longer names; their segments are gone, too",
		func(r reloaded) any { return table.List[string](r.Removed) }),
	table.Shown("failed", "failed", "caches that could not be added or changed",
		func(r reloaded) any { return table.List[string](r.Failed) }),
	table.Shown("needs_restart", "needs restart", "keys that have changed and need a new server",
		func(r reloaded) any { return table.List[string](r.NeedsRestart) }),
	table.InJSON("error", "why something was not applied; on stderr for people", func(r reloaded) any { return r.Error }),
}

func newReload() *cobra.Command {
	var f socketsFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "Have a server read its configuration again, and say what came of it",
		Long: paragraphs(`Asks the server to read its configuration again, waits until it has applied or refused it, and says which. A
reload takes as long as the sources of new caches take to open. Ctrl-C ends the wait, and not the reload.`,
			`The server adds, changes and removes caches, and takes limits and log.level. A cache that the file no longer
names is removed with its memory. SIGHUP does the same, and only the log of the server says the result.`,
			reloadColumns.Explain("OUTPUT"),
			exitStatus(exitPermission, exitNoServer)+"\n1 also stands for a reload that was refused or applied in part."),
		Args: arguments(0, 0, "none; the server knows its file"),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			if err := (admin{f.dir}).answers(ctx); err != nil {
				return err
			}
			status, body, err := admin{f.dir}.request(ctx, http.MethodPost, "/v1/reload")
			if err != nil {
				return err
			}
			if status != http.StatusOK {
				return errors.New(complaint(status, body))
			}
			var did reloaded
			if err := json.Unmarshal(body, &did); err != nil {
				return fmt.Errorf("the answer of the server: %w", err)
			}
			if err := reloadColumns.One(c.OutOrStdout(), did, asJSON); err != nil {
				return err
			}
			if did.Result != resultApplied {
				return errors.New(did.Error)
			}
			return nil
		},
	}
	f.folder(c)
	jsonFlag(c, &asJSON)
	return c
}
