package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// admin answers operators: HTTP with JSON on the admin socket, and metrics on TCP where that is configured.
type admin struct {
	http    []*http.Server
	sockets []net.Listener
}

// newAdmin listens. tcp: host:port for metrics; "" for none; without a host on the loopback.
func newAdmin(s *Server, tcp string) (a *admin, err error) {
	a = &admin{}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	socket, err := listen(s.dir, control.AdminSocket)
	if err != nil {
		return a, err
	}
	a.add(own{socket, s}, s.adminHandler())
	if err := os.Chmod(filepath.Join(s.dir, control.AdminSocket), 0o600); err != nil {
		return a, err
	}
	if tcp == "" {
		return a, nil
	}
	host, port, err := net.SplitHostPort(tcp)
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
	a.add(l, mux)
	return a, nil
}

func (a *admin) add(l net.Listener, h http.Handler) {
	a.sockets = append(a.sockets, l)
	a.http = append(a.http, &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10})
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
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for k, h := range a.http {
		errs = append(errs, h.Shutdown(ctx))
		if err := a.sockets[k].Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// own is a listener that turns away other users.
type own struct {
	*net.UnixListener
	server *Server
}

func (l own) Accept() (net.Conn, error) {
	for {
		c, err := patient{l.UnixListener, l.server.log}.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, ok, err := peer(c)
		if ok {
			return c, nil
		}
		l.server.log.Warn("an operator of another user was turned away", "uid", uid, "error", err)
		c.Close()
	}
}

// cacheAnswer is a cache as operators see it. Fields are never renamed.
type cacheAnswer struct {
	Name        string      `json:"name"`
	Path        string      `json:"path"`
	UUID        string      `json:"uuid"` // of the segment
	Samples     uint64      `json:"samples"`
	Slots       uint64      `json:"slots"` // 0 in a variable-size cache
	Variable    bool        `json:"variable"`
	Bytes       uint64      `json:"segment_bytes"`
	Fingerprint string      `json:"fingerprint"`
	Source      string      `json:"source"`  // its kind
	Adopted     bool        `json:"adopted"` // it was warm when this server began
	Stats       cache.Stats `json:"stats"`
	figures
}

func (h *hosted) answer() (cacheAnswer, error) {
	stats, err := h.cache.Stats()
	return cacheAnswer{Name: h.name, Path: h.segment.Path(), UUID: fmt.Sprintf("%x", h.segment.Header.UUID), Samples: h.segment.Samples, Slots: h.segment.Slots, Variable: h.segment.Variable(), Bytes: h.segment.SegmentBytes,
		Fingerprint: h.segment.Header.Fingerprint, Source: h.source.Info().Kind, Adopted: h.adopted, Stats: stats, figures: h.figures()}, err
}

func (s *Server) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// adminHandler is what the admin socket answers.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	all := func(w http.ResponseWriter, _ *http.Request) {
		answers := []cacheAnswer{}
		for _, h := range s.hosted() {
			a, err := h.answer()
			if err != nil {
				fail(w, http.StatusInternalServerError, err.Error())
				return
			}
			answers = append(answers, a)
		}
		reply(w, answers)
	}
	mux.HandleFunc("GET /v1/caches", all)
	mux.HandleFunc("GET /stats", all)
	mux.HandleFunc("GET /v1/caches/{name}", func(w http.ResponseWriter, r *http.Request) {
		h := s.cache(r.PathValue("name"))
		if h == nil {
			fail(w, http.StatusNotFound, fmt.Sprintf("this server has no cache %q; it has: %s", r.PathValue("name"), s.names()))
			return
		}
		a, err := h.answer()
		if err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		reply(w, a)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready() {
			fail(w, http.StatusServiceUnavailable, "the server is beginning or ending")
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", s.metricsHandler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "there are: GET /v1/caches, /v1/caches/NAME, /stats, /healthz, /readyz, /metrics")
	})
	return mux
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return // an operator who has gone away needs no answer
	}
}

func fail(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	reply(w, map[string]string{"error": why})
}

// hosted returns the caches in the order of their names.
func (s *Server) hosted() []*hosted {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*hosted, 0, len(s.caches))
	for _, h := range s.caches {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *hosted) int { return strings.Compare(a.name, b.name) })
	return all
}

// ready says whether clients are answered.
func (s *Server) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving && !s.closed
}
