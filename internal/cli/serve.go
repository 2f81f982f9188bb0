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

func (f *configFlag) flag(c *cobra.Command, note string) {
	c.Flags().StringVarP(&f.path, "config", "c", "", "the configuration, YAML"+note)
	must(c.MarkFlagFilename("config", "yaml", "yml"))
}

func newServe() *cobra.Command {
	f, check, demand := configFlag{}, false, onDemand{}
	c := &cobra.Command{
		Use:   "serve {-c config.yaml | --on-demand}",
		Short: "Fill caches from their sources, for all clients",
		Long: paragraphs(`Makes the caches of the configuration, or adopts warm ones of an earlier server, and answers clients that
miss samples. It reads each sample from its source once for all clients. Hits are memory reads of the
clients and need no server; they go on when the server ends.`,
			`It runs until SIGTERM or SIGINT. Then it finishes the reads under way, answers the waiting clients, and
leaves the caches to the next server. A cache has one server, and so has a folder of sockets. It is safe to
kill the server at any moment.`,
			`At SIGHUP, and for stocached reload, it reads the configuration again. It adds, removes and changes caches,
limits and log.level. It logs settings that need a restart. An invalid file changes nothing. It tells systemd when it is ready,
reloads and ends, answers its watchdog while it serves, and takes sockets from it; deploy/ has unit files.`,
			`With decode:, stocached-decode beside this program decodes JPEG, PNG and WebP files, in one process a core.
Without it, a server decodes nothing: then --check and the start refuse such a cache, but for store: encoded.
STOCACHED_DECODE=PATH names another program.`,
			`config.example.yaml is the manual of the configuration. --check reads it, opens every source, checks whether
all caches fit together, and starts nothing. With decode:, it also reads up to 256 files of the cache, spread
over the source, for at most 5 seconds. It says of which kinds they are, by their content.`,
			`--on-demand needs no configuration: programs open addresses, such as s3://bucket/name, and the server ends 30
seconds after the last of them. The Python package starts such a server itself.`,
			exitStatus(exitNotFound, exitMemory, exitExists, exitPermission)),
		Example: `  stocached serve -c config.yaml
  stocached serve -c config.yaml --check`,
		Args: arguments(0, 0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if demand.on {
				return demand.serve(c)
			}
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
				looked, err := server.Check(ctx, options)
				if err != nil {
					return err
				}
				for _, l := range looked {
					printLooked(c.OutOrStdout(), l)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: good, %s\n", f.path, table.Plural(len(options.Caches), "cache"))
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
			r := &reloader{path: f.path, began: configuration, level: level, log: log, manager: manager{log}}
			options.Configuration = r
			s, err := server.New(ctx, options)
			if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
				log.Info("ended before it served clients", "because", err)
				return nil // it was asked to end
			}
			if err != nil {
				return err
			}
			r.begin(ctx, s)
			fmt.Fprintln(c.OutOrStdout(), r.status())
			return r.serve(ctx, stop, hangups, pages)
		},
	}
	f.flag(c, "")
	c.Flags().BoolVar(&check, "check", false, "only check that the configuration is valid and every source opens")
	demand.add(c)
	exclusive(c, "config", "on-demand")
	exclusive(c, "check", "on-demand")
	c.MarkFlagsOneRequired("config", "on-demand")
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
	table.Shown("value", "value", "that a server would take", func(s config.Setting) any { return s.Value }),
	table.Shown("from", "from", "default, file, or an environment variable",
		func(s config.Setting) any { return s.From }),
}

func newConfig() *cobra.Command {
	root := &cobra.Command{Use: "config", Short: "Show the configuration of a server",
		Args: arguments(0, 0, "print first"),
		RunE: func(*cobra.Command, []string) error { return usage("config needs print") }}
	f, s, running, asJSON := configFlag{}, socketsFlag{}, false, false
	show := &cobra.Command{
		Use:   "print {-c config.yaml | --server}",
		Short: "Print the values in force, and where each comes from",
		Long: paragraphs(`Reads the configuration as serve does, or with --server asks the running server, which may have another one
since its last reload. It prints the keys in force: those outside of lists, then those of each cache, its source and its tiers. Keys of a source that the file leaves out have the defaults
that "stocached source --help" names. Passwords, and users, passwords and queries of addresses are hidden.`,
			settingColumns.Explain("OUTPUT"), exitStatus(exitNotFound, exitPermission, exitNoServer)),
		Args: arguments(0, 0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			var settings []config.Setting
			if running == (f.path != "") {
				return usage("config print needs -c FILE, or --server for the running server")
			}
			if running {
				ctx, cancel := context.WithTimeout(c.Context(), answerDeadline)
				defer cancel()
				if err := (admin{s.dir}).json(ctx, "/v1/config", &settings); err != nil {
					return err
				}
			} else {
				configuration, err := config.Load(f.path)
				if err != nil {
					return err
				}
				settings = append(configuration.Settings(), configuration.CacheSettings()...)
			}
			return settingColumns.Rows(c.OutOrStdout(), settings, asJSON)
		},
	}
	f.flag(show, "")
	show.Flags().BoolVar(&running, "server", false, "of the running server")
	s.folder(show)
	jsonFlag(show, &asJSON)
	root.AddCommand(show)
	return root
}
