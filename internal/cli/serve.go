package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
)

// configFlag is the path of a server's configuration.
type configFlag struct{ path string }

func (f *configFlag) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.path, "config", "c", "", "the configuration, YAML (required)")
	must(c.MarkFlagRequired("config"))
	must(c.MarkFlagFilename("config", "yaml", "yml"))
}

func newServe() *cobra.Command {
	f, check := configFlag{}, false
	c := &cobra.Command{
		Use:   "serve -c config.yaml",
		Short: "Fill caches from their sources, for all clients",
		Long: paragraphs(`Makes the caches of the configuration, or adopts warm ones of an earlier server, and answers clients that
miss samples. It reads each sample from its source once for all clients. Hits are memory reads of the
clients and need no server; they go on when the server ends.`,
			`It runs until SIGTERM or SIGINT. Then it finishes the reads under way, answers the waiting clients, and
leaves the caches to the next server. A cache has one server, and so has a folder of sockets. It is safe to
kill the server at any moment.`,
			`At SIGHUP it reads the configuration again. It adds, removes and changes caches, limits and log.level. It
logs settings that need a restart. An invalid file changes nothing. It tells systemd when it is ready,
reloads and ends, answers its watchdog while it serves, and takes sockets from it; deploy/ has unit files.`,
			`With decode:, stocached-decode beside this program decodes JPEG files, in one process a core. Where it is
missing, Go decodes, which is slower. STOCACHED_DECODE=PATH names another one; if it is empty, Go decodes.`,
			`config.example.yaml is the manual of the configuration. --check reads it, opens every source, checks whether
all caches fit together, and starts nothing.`,
			exitStatus(exitNotFound, exitMemory, exitExists, exitPermission)),
		Example: `  stocached serve -c config.yaml
  stocached serve -c config.yaml --check`,
		Args:              arguments(0, 0, "none"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			configuration, err := config.Load(f.path)
			if err != nil {
				return err
			}
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, syscall.SIGHUP) // a signal that comes before the server exists waits
			defer signal.Stop(hangups)
			ctx, stop := interruptible(c.Context())
			defer stop()
			level := new(slog.LevelVar)
			level.Set(configuration.LogLevel())
			log := configuration.Logger(os.Stderr, level)
			options := configuration.Options(log)
			if check {
				if err := server.Check(ctx, options); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s: good, %s\n", f.path, table.Plural(len(options.Caches), "cache"))
				return err
			}
			if err := inherit(&options); err != nil {
				return err
			}
			page := serverPage(&options)
			options.Page, options.Version = page, version
			var pages *pageListener
			if address := configuration.Web.Listen; address != "" {
				if pages, err = listenPage(ctx, "web.listen", address, page); err != nil {
					return err
				}
				defer pages.Close()
				if text := pages.warning(); text != "" {
					log.Warn(text)
				}
			}
			s, err := server.New(ctx, options)
			if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
				log.Info("ended before it served clients", "because", err)
				return nil // it was asked to end
			}
			if err != nil {
				return err
			}
			r := &reloader{path: f.path, began: configuration, level: level, log: log, server: s, manager: manager{log}}
			fmt.Fprintln(c.OutOrStdout(), r.status())
			return r.serve(ctx, stop, hangups, pages)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&check, "check", false, "only check that the configuration is valid and every source opens")
	return c
}

// serve serves clients until ctx ends, which stop does too, with what runs beside: reloads, the service manager, and
// the page, if any.
func (r *reloader) serve(ctx context.Context, stop func(), hangups <-chan os.Signal, pages *pageListener) error {
	r.manager.ready(r.status())
	var beside sync.WaitGroup
	beside.Go(func() { r.run(ctx, hangups) })
	beside.Go(func() { r.manager.watch(ctx, r.server.Dir()) })
	if pages != nil {
		r.log.Info("the page", "address", pages.url())
		beside.Go(func() {
			if err := pages.serve(ctx); err != nil {
				r.log.Error("the page ended", "error", err)
			}
		})
	}
	beside.Go(func() {
		<-ctx.Done()
		r.manager.stopping()
	})
	err := r.server.Serve(ctx)
	stop() // ends what runs beside
	ended := make(chan struct{})
	go func() {
		beside.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Second): // a source may hang while a reload opens it
	}
	return err
}

var settingColumns = table.Columns[config.Setting]{
	table.Shown("key", "key", "of the configuration",
		func(s config.Setting) any { return s.Key }),
	table.Shown("value", "value", "that is in force", func(s config.Setting) any { return s.Value }),
	table.Shown("from", "from", "default, file, or an environment variable",
		func(s config.Setting) any { return s.From }),
}

func newConfig() *cobra.Command {
	root := &cobra.Command{Use: "config", Short: "Show the configuration of a server",
		Args: arguments(0, 0, "print first"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error { return usage("config needs print") }}
	f, asJSON := configFlag{}, false
	show := &cobra.Command{
		Use:   "print -c config.yaml",
		Short: "Print the values in force, and where each comes from",
		Long: paragraphs(`Reads the configuration as serve does, and prints the keys in force: those outside of lists,
then those of each cache, its source and its tiers. Keys of a source that the file leaves out have the defaults
that "stocached source --help" names. Passwords, and users, passwords and queries of addresses are hidden.`,
			settingColumns.Explain("OUTPUT"), exitStatus(exitNotFound)),
		Args:              arguments(0, 0, "none"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			configuration, err := config.Load(f.path)
			if err != nil {
				return err
			}
			return settingColumns.Rows(c.OutOrStdout(), append(configuration.Settings(), configuration.CacheSettings()...), asJSON)
		},
	}
	f.add(show)
	jsonFlag(show, &asJSON)
	root.AddCommand(show)
	return root
}
