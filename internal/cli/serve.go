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

// configFlag is the file that a server is configured by.
type configFlag struct{ path string }

func (f *configFlag) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.path, "config", "c", "", "the configuration, YAML (required)")
	if err := c.MarkFlagRequired("config"); err != nil {
		panic(err)
	}
	if err := c.MarkFlagFilename("config", "yaml", "yml"); err != nil {
		panic(err)
	}
}

func newServe() *cobra.Command {
	f, check := configFlag{}, false
	c := &cobra.Command{
		Use:   "serve -c config.yaml",
		Short: "Fill caches from their sources, for all clients",
		Long: paragraphs(`Makes the caches of the configuration, or adopts those that an earlier server left, warm, and answers clients that miss
samples: each sample is read from its source once for everybody. Hits are plain memory reads of the clients and need no
server; they go on when it ends.`,
			`It runs until SIGTERM or SIGINT: then it finishes the reads under way, answers who waits, and leaves the caches to the
next server. There is one server for a cache, and one for a folder of sockets. Killing it at any moment does no harm.`,
			`SIGHUP makes it read the configuration again: caches come, go and change, and so do limits and log.level; what needs a
restart is said in the log, and a file that is not good changes nothing. It tells systemd when it is ready, reloads and
ends, answers its watchdog while it serves, and takes sockets from it; deploy/ has unit files.`,
			`config.example.yaml is the manual of the configuration. --check reads it, opens every source, says whether all
caches fit together, and starts nothing.`,
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
			signal.Notify(hangups, syscall.SIGHUP) // from here on: before there is a server, it waits
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
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s: good, %s\n", f.path, plural(len(options.Caches), "cache"))
				return err
			}
			if err := inherit(&options); err != nil {
				return err
			}
			s, err := server.New(ctx, options)
			if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
				log.Info("ended before it served", "because", err)
				return nil // as it was asked to
			}
			if err != nil {
				return err
			}
			r := &reloader{path: f.path, began: configuration, level: level, log: log, server: s, manager: manager{log}}
			fmt.Fprintln(c.OutOrStdout(), r.status())
			r.manager.ready(r.status())
			var beside sync.WaitGroup
			beside.Go(func() { r.run(ctx, hangups) })
			beside.Go(func() { r.manager.watch(ctx, s.Dir()) })
			beside.Go(func() {
				<-ctx.Done()
				r.manager.stopping()
			})
			err = s.Serve(ctx)
			stop() // of what runs beside it
			ended := make(chan struct{})
			go func() {
				beside.Wait()
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(time.Second): // do not wait for a source that hangs while a reload opens it
			}
			return err
		},
	}
	f.add(c)
	c.Flags().BoolVar(&check, "check", false, "only say whether the configuration is good and every source opens")
	return c
}

var settingColumns = table.Columns[config.Setting]{
	table.Shown("key", "key", "of the configuration; lists are in the file",
		func(s config.Setting) any { return s.Key }),
	table.Shown("value", "value", "that is in force", func(s config.Setting) any { return s.Value }),
	table.Shown("from", "from", "default, file, or the environment variable that says so",
		func(s config.Setting) any { return s.From }),
}

func newConfig() *cobra.Command {
	root := &cobra.Command{Use: "config", Short: "Look at the configuration of a server",
		Args: arguments(0, 0, "print first"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error { return usage("config needs print") }}
	f, asJSON := configFlag{}, false
	show := &cobra.Command{
		Use:               "print -c config.yaml",
		Short:             "Print what is in force, and where each value comes from",
		Long:              paragraphs(`Reads the configuration as serve would, and prints every key outside of lists.`, settingColumns.Explain("OUTPUT"), exitStatus(exitNotFound)),
		Args:              arguments(0, 0, "none"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			configuration, err := config.Load(f.path)
			if err != nil {
				return err
			}
			return settingColumns.Rows(c.OutOrStdout(), configuration.Settings(), asJSON)
		},
	}
	f.add(show)
	jsonFlag(show, &asJSON)
	root.AddCommand(show)
	return root
}
