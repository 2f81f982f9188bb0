package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/server/admin"
)

// adminSockets answer operators: the admin socket, and metrics on TCP if configured.
type adminSockets struct {
	http    []*http.Server
	sockets []net.Listener
	ctx     context.Context // context of requests; close ends it
	cancel  context.CancelFunc
}

// newAdminSockets listens on the admin socket. The server already listens for metrics.
func newAdminSockets(s *Server, o *Options) (a *adminSockets, err error) {
	a = &adminSockets{}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	handlers := &admin.Host{Server: s, Log: s.log, Profiles: o.Admin.Pprof, Ready: s.ready,
		Caches: s.served, Enter: s.enter, Require: s.require, Absent: s.absent,
		StartPlan: s.plan, IsLeftOut: s.isLeftOut, Replies: s.sessions.Replies, Requests: s.sessions.Requests,
		Page: o.Page, Configuration: o.Configuration, Version: o.Version}
	if s.onDemand != nil {
		handlers.Open, handlers.Parts = s.openAddress, (*parts)(s)
	}
	if s.metrics != nil { // first: close then ends it, too, whatever fails below
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", handlers.MetricsHandler())
		a.add(s.metrics, mux, s.log)
	}
	group, err := groupID(o.Admin.Group)
	if err != nil {
		return a, err
	}
	socket, err := o.listen(o.AdminSocket, control.AdminSocket, group)
	if err != nil {
		return a, err
	}
	a.add(operators{socket, s.log, group, new(fewlines.Limit)}, handlers.Handler(), s.log)
	return a, nil
}

func (a *adminSockets) add(l net.Listener, h http.Handler, log *slog.Logger) {
	a.sockets = append(a.sockets, l)
	a.http = append(a.http, &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context {
			return a.ctx
		}})
}

// serve answers until close is called.
func (a *adminSockets) serve(s *Server) {
	for k, h := range a.http {
		s.background.Go(func() {
			if err := h.Serve(a.sockets[k]); err != nil && !errors.Is(err, http.ErrServerClosed) {
				s.log.Error("the admin socket ended", "error", err)
			}
		})
	}
}

func (a *adminSockets) close() error {
	a.cancel()
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for k, h := range a.http {
		if err := h.Shutdown(ctx); err != nil {
			errs = append(errs, h.Close()) // perhaps a client that asks for a long profile
		}
		if err := a.sockets[k].Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// operators is a listener that refuses users other than the owner and the members of a group, if
// any.
type operators struct {
	*net.UnixListener
	log   *slog.Logger
	group *uint32
	lines *fewlines.Limit // limits lines about refusals
}

func (l operators) Accept() (net.Conn, error) {
	for {
		c, err := retryingListener{l.UnixListener, l.log}.AcceptUnix()
		if err != nil {
			return nil, err
		}
		who, err := sockets.PeerOf(c)
		if err == nil && mayAdminister(who, l.group) {
			return c, nil
		}
		if about := l.lines.Add("uid", who.UID, "groups", who.Groups, "error", err); about != nil {
			l.log.Warn("an operator of another user was refused", about...)
		}
		c.Close()
	}
}
