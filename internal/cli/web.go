package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/web"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
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

// maxTimeline is the largest file that the page draws, in bytes. stocached trace draws larger ones.
const maxTimeline = 64 << 20

// newPage makes the page of the caches in directories.
func newPage(interval time.Duration, server *asker, dirs ...string) *web.Page {
	return web.New(web.Options{Look: newLooker(server, dirs...).look, Interval: interval, Fields: webFields(),
		MaxTimeline: maxTimeline})
}

// serverPage makes the page of a server: the caches of its user, and those that it has elsewhere.
func serverPage(o *server.Options) *web.Page {
	dirs := []string{""}
	for _, c := range o.Caches {
		if c.Dir != "" && !slices.Contains(dirs, c.Dir) {
			dirs = append(dirs, c.Dir)
		}
	}
	return newPage(time.Second, &asker{sockets: socketsFlag{dir: o.SocketsDir}}, dirs...)
}

// pageListener is a page on a TCP address.
type pageListener struct {
	net.Listener
	page *web.Page
}

// listenPage serves the page on the address of an option; see sockets.ListenTCP.
func listenPage(ctx context.Context, key, address string, page *web.Page) (*pageListener, error) {
	l, err := sockets.ListenTCP(ctx, key, address)
	if err != nil {
		return nil, err
	}
	return &pageListener{l, page}, nil
}

// url is the address of the page for browsers on this machine.
func (l *pageListener) url() string {
	a := *l.Addr().(*net.TCPAddr)
	if a.IP.IsUnspecified() && a.IP.To4() != nil {
		a.IP = net.IPv4(127, 0, 0, 1)
	} else if a.IP.IsUnspecified() {
		a.IP = net.IPv6loopback
	}
	return fmt.Sprintf("http://%v/", &a)
}

// warning says what is wrong with an address that other machines reach; "": they do not.
func (l *pageListener) warning() string {
	address, err := netip.ParseAddrPort(l.Addr().String())
	if err == nil && address.Addr().Unmap().IsLoopback() {
		return ""
	}
	return fmt.Sprintf("warning: everyone who reaches %v can read the page, without a password: names, paths, programs "+
		"and process ids of the caches. Listen on 127.0.0.1 and use ssh -L instead", l.Addr())
}

// serve answers until the context ends.
func (l *pageListener) serve(ctx context.Context) error {
	h := &http.Server{Handler: l.page, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	if l.warning() != "" {
		h.Handler = l.page.AnyHost()
	}
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer stop()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func newWeb() *cobra.Command {
	var dir dirFlag
	server := &asker{}
	interval, listen := time.Second, "127.0.0.1:9201"
	c := &cobra.Command{
		Use:   "web",
		Short: "Watch all caches of this user in a browser",
		Long: paragraphs(`Serves a page that shows all caches of this user: what stocached top shows, with curves to zoom, and every
number of stocached stats. It changes nothing. A timeline that a loader recorded (trace=) is drawn when it is
dropped onto the page, as stocached trace does. The page needs no network and no server.`,
			ofOtherUsers("web"),
			`It listens on this machine only. From another machine: ssh -L 9201:127.0.0.1:9201 MACHINE. With --listen
HOST:PORT it listens elsewhere, and warns: the page has no password.`,
			`Programs may read what the page reads: GET /v1/live has for each cache the fields of stats --watch --json,
clients, and the last ten minutes; ?after=SECONDS leaves out what came before. It reads the caches when it is
asked, at most twice an interval.`,
			exitStatus(exitNotFound, exitPermission, exitExists)),
		Example: `  stocached web
  stocached web --listen 127.0.0.1:0`,
		Args: func(c *cobra.Command, args []string) error {
			if interval <= 0 {
				return usage("interval %v is not above 0", interval)
			}
			return arguments(0, 0, "none")(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if wrong := config.CheckListen("--listen", listen, "127.0.0.1:9201"); len(wrong) > 0 {
				return usage("%s", strings.Join(wrong, "; "))
			}
			if err := dir.check(); err != nil {
				return err
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			l, err := listenPage(ctx, "--listen", listen, newPage(interval, server, dir.dir))
			if err != nil {
				return err
			}
			if text := l.warning(); text != "" {
				complain(c.ErrOrStderr(), text)
			}
			if _, err := fmt.Fprintln(c.OutOrStdout(), l.url()); err != nil {
				return errors.Join(err, l.Close())
			}
			return l.serve(ctx)
		},
	}
	dir.add(c)
	server.sockets.folder(c)
	c.Flags().StringVar(&listen, "listen", listen, "HOST:PORT; port 0: any free one")
	c.Flags().DurationVar(&interval, "interval", interval, "time between two reads")
	return c
}
