package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/server/served"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// admin answers operators: HTTP with JSON on the admin socket, and metrics on TCP where that is configured.
type admin struct {
	http    []*http.Server
	sockets []net.Listener
	ctx     context.Context // of requests; ends with close
	cancel  context.CancelFunc
}

// newAdmin listens.
func newAdmin(s *Server, o *Options) (a *admin, err error) {
	a = &admin{}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	group, err := groupID(o.Admin.Group)
	if err != nil {
		return a, err
	}
	socket, err := o.listen(o.AdminSocket, control.AdminSocket, group)
	if err != nil {
		return a, err
	}
	a.add(operators{socket, s.log, group}, s.adminHandler(o.Admin.Pprof), s.log)
	if o.MetricsListen == "" {
		return a, nil
	}
	host, port, err := net.SplitHostPort(o.MetricsListen)
	if err != nil {
		return a, fmt.Errorf("metrics.listen: %w", err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return a, fmt.Errorf("metrics.listen: %w", err)
	}
	s.metricsAddress = l.Addr()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metricsHandler())
	a.add(l, mux, s.log)
	return a, nil
}

func (a *admin) add(l net.Listener, h http.Handler, log *slog.Logger) {
	a.sockets = append(a.sockets, l)
	a.http = append(a.http, &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), BaseContext: func(net.Listener) context.Context { return a.ctx }})
}

// serve answers until close.
func (a *admin) serve(s *Server) {
	for k, h := range a.http {
		s.background.Go(func() {
			if err := h.Serve(a.sockets[k]); err != nil && !errors.Is(err, http.ErrServerClosed) {
				s.log.Error("the admin socket ended", "error", err)
			}
		})
	}
}

func (a *admin) close() error {
	a.cancel()
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for k, h := range a.http {
		if err := h.Shutdown(ctx); err != nil {
			errs = append(errs, h.Close()) // who asks for a long profile, perhaps
		}
		if err := a.sockets[k].Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// operators is a listener that turns away other users but those of a group, if there is one.
type operators struct {
	*net.UnixListener
	log   *slog.Logger
	group *uint32
}

func (l operators) Accept() (net.Conn, error) {
	for {
		c, err := patient{l.UnixListener, l.log}.AcceptUnix()
		if err != nil {
			return nil, err
		}
		who, err := sockets.PeerOf(c)
		if err == nil && mayAdminister(who, l.group) {
			return c, nil
		}
		l.log.Warn("an operator of another user was turned away", "uid", who.UID, "groups", who.Groups, "error", err)
		c.Close()
	}
}

func (s *Server) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// adminHandler is what the admin socket answers.
func (s *Server) adminHandler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/caches", s.answerAll)
	mux.HandleFunc("GET /stats", s.answerAll)
	mux.HandleFunc("GET /v1/caches/{name}", func(w http.ResponseWriter, r *http.Request) { s.answerOne(w, r.PathValue("name"), http.StatusOK) })
	mux.HandleFunc("POST /v1/caches", s.postCache)
	mux.HandleFunc("PUT /v1/caches/{name}", s.putCache)
	mux.HandleFunc("DELETE /v1/caches/{name}", s.deleteCache)
	mux.HandleFunc("POST /v1/caches/{name}/plan", s.postPlan)
	mux.HandleFunc("GET /v1/caches/{name}/plan", s.getPlans)
	mux.HandleFunc("DELETE /v1/caches/{name}/plan", s.deletePlans)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range s.served() {
			h.Filler().Stuck() // no answer comes when a filler is locked up
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready() {
			fail(w, http.StatusServiceUnavailable, "the server is beginning or ending")
			return
		}
		fmt.Fprintln(w, strings.Join(append([]string{"ok"}, s.LeftOut()...), "\n"))
	})
	mux.Handle("GET /metrics", s.metricsHandler())
	there := "there are: GET and POST /v1/caches; GET, PUT and DELETE /v1/caches/NAME; GET, POST and DELETE /v1/caches/NAME/plan; GET /stats, /healthz, /readyz, /metrics"
	if profiles {
		handleProfiles(mux)
		there += ", /debug/pprof/"
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, http.StatusNotFound, there) })
	return mux
}

// handleProfiles adds what net/http/pprof answers, without its way of adding itself to every program.
func handleProfiles(mux *http.ServeMux) {
	long := func(h http.HandlerFunc) http.HandlerFunc { // a profile takes the seconds that it was asked for
		return func(w http.ResponseWriter, r *http.Request) {
			endless(w)
			h(w, r)
		}
	}
	mux.HandleFunc("GET /debug/pprof/", long(pprof.Index))
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", long(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", long(pprof.Trace))
}

// endless lets an answer take as long as it takes.
func endless(w http.ResponseWriter) {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
		return // then it has the usual time
	}
}

func (s *Server) answerAll(w http.ResponseWriter, _ *http.Request) {
	answers := []served.Status{}
	for _, h := range s.served() {
		if !h.Enter() {
			continue
		}
		a, err := h.Status()
		h.Leave()
		if err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		answers = append(answers, a)
	}
	reply(w, http.StatusOK, answers)
}

func (s *Server) answerOne(w http.ResponseWriter, name string, code int) {
	h := s.enter(name)
	if h == nil {
		fail(w, http.StatusNotFound, s.absent(name))
		return
	}
	a, err := h.Status()
	h.Leave()
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, code, a)
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return // an operator who has gone away needs no answer
	}
}

func fail(w http.ResponseWriter, code int, why string) {
	reply(w, code, map[string]string{"error": why})
}

// hosted returns the caches in the order of their names.
func (s *Server) served() []*served.Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*served.Cache, 0, len(s.caches))
	for _, h := range s.caches {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *served.Cache) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// ready says whether clients are answered.
func (s *Server) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving && !s.closed
}
