package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/web"
)

// webFields explains what the page shows of a cache.
func webFields() (fields []web.Field) {
	all := slices.Concat(statsColumns, comparedColumns, serverColumns)
	for _, c := range all {
		if c.Title != "" {
			fields = append(fields, web.Field{Field: c.Field, Title: c.Title, Help: c.Help})
		}
	}
	return fields
}

// newPage makes the page of the caches in directories.
func newPage(interval time.Duration, anyHost bool, server *asker, dirs ...string) *web.Page {
	return web.New(web.Options{Look: newLooker(server, dirs...).look, Interval: interval, Fields: webFields(),
		AnyHost: anyHost})
}

func newWeb() *cobra.Command {
	var dir dirFlag
	server := &asker{}
	interval, listen := time.Second, "127.0.0.1:9201"
	c := &cobra.Command{
		Use:   "web",
		Short: "Watch all caches in a browser",
		Long: paragraphs(`Serves a page that shows all caches of this user: what stocached top shows, with curves to zoom, and every
number of stocached stats. It changes nothing. A timeline that a loader recorded (trace=) is drawn when it is
dropped onto the page, as stocached trace does. The page needs no network and no server.`,
			`It listens on this machine only. From another machine: ssh -L 9201:127.0.0.1:9201 MACHINE. With --listen
HOST:PORT it listens elsewhere, and warns: the page has no password.`,
			`Programs may read what the page reads: GET /v1/live has for each cache the fields of stats --watch --json,
clients, and the last ten minutes; ?after=SECONDS leaves out what came before. It reads the caches when it is
asked, at most twice an interval.`,
			exitStatus(exitPermission, exitExists)),
		Example: `  stocached web
  stocached web --listen 127.0.0.1:0`,
		Args: func(c *cobra.Command, args []string) error {
			if interval <= 0 {
				return usage("interval %v is not above 0", interval)
			}
			return arguments(0, 0, "none")(c, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := dir.all(); err != nil {
				return err
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen %s: %w", listen, err)
			}
			open := beyondLoopback(l.Addr())
			if open {
				complain(c.ErrOrStderr(), openWarning(l.Addr()))
			}
			fmt.Fprintf(c.OutOrStdout(), "http://%s/\n", l.Addr())
			h := &http.Server{Handler: newPage(interval, open, server, dir.dir), ReadHeaderTimeout: 10 * time.Second,
				ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
			context.AfterFunc(ctx, func() { h.Close() })
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
	}
	dir.add(c)
	server.sockets.folder(c)
	c.Flags().StringVar(&listen, "listen", listen, "HOST:PORT; port 0: any free one")
	c.Flags().DurationVar(&interval, "interval", interval, "time between two reads")
	return c
}

// beyondLoopback says whether other machines can reach an address.
func beyondLoopback(a net.Addr) bool {
	address, err := netip.ParseAddrPort(a.String())
	return err != nil || !address.Addr().Unmap().IsLoopback()
}

func openWarning(a net.Addr) string {
	return fmt.Sprintf("warning: everyone who reaches %v can read the page, without a password: names, paths, programs "+
		"and process ids of the caches. Listen on 127.0.0.1 and use ssh -L instead", a)
}
