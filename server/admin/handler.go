// Package admin answers operators: HTTP with JSON about caches and plans, health, profiles, and
// metrics for Prometheus.
//
// Host (handler.go) has the handler of the admin socket. open.go opens addresses, plans.go has the requests about
// plans, metrics.go the metrics. docs/spec/control.md specifies the paths and
// fields. The package imports served, prefetch and session, and knows its server only as a Host.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/server/session"
	"github.com/stocached/stocached/source/wrap"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server is what operators change and ask.
type Server interface {
	EndPlan(name, plan string) (ended []string, err error)
	// Problems are lines of /readyz: what is left out, and a reload that failed.
	Problems() (lines []string)
	LastReload() (at time.Time, err error)
	// Beside are reads beside those of served caches.
	Beside() []Beside
}

// Beside are the reads of a cache that opens, or of files of programs.
type Beside struct {
	Cache    string
	Failures *wrap.Failures
	Counts   *wrap.Counts // nil: it opens
}

// Parts reads objects of addresses. Its errors are those of source.Objects.
type Parts interface {
	List(ctx context.Context, p Part, each func(o Object)) error
	// Read calls give with the bytes of a part, which are in memory until it returns.
	Read(ctx context.Context, p Part, give func(data []byte)) error
	// Ahead begins to read what a program will ask for soon.
	Ahead(ctx context.Context, a Ahead) error
}

// Host is what the handlers need from their server.
type Host struct {
	Server
	Log      *slog.Logger
	Version  string       // version of the program
	Profiles bool         // answer /debug/pprof/
	Page     http.Handler // the page for people; nil: there is none
	// POST /v1/reload and GET /v1/config; nil: there are none
	Configuration http.Handler
	// opens an address, for POST /v1/open; nil: the server has a configuration
	Open   func(ctx context.Context, o Opening) (Opened, error)
	Parts  Parts                  // reads objects of addresses, for POST /v1/objects and /v1/part; nil as Open
	Ready  func() bool            // clients are answered
	Caches func() []*served.Cache // in the order of their names
	// enters a cache; the caller must leave it; nil: there is none of that name
	Enter     func(name string) *served.Cache
	Require   func(name string) (*served.Cache, error)                       // is Enter with an error
	Absent    func(name string) string                                       // says why there is no cache of that name
	StartPlan func(name string, o prefetch.Options) (prefetch.Status, error) // starts a plan for a cache
	// says of each cache, and of each that is left out, whether it is
	IsLeftOut func() map[string]bool
	// memory of answers that wait to be written
	Replies  *session.Budget
	Requests *session.Budget // memory of requests under way
	refusals fewlines.Limit  // in the log
}

// MetricsHandler answers requests for metrics.
func (s *Host) MetricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// Handler answers all requests of operators.
func (s *Host) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/caches", s.answerAll)
	mux.HandleFunc("GET /stats", s.answerAll)
	mux.HandleFunc("GET /v1/caches/{name}",
		func(w http.ResponseWriter, r *http.Request) { s.answerOne(w, r.PathValue("name")) })
	mux.HandleFunc("POST /v1/caches/{name}/plan", s.postPlan)
	mux.HandleFunc("GET /v1/caches/{name}/plan", s.getPlans)
	mux.HandleFunc("DELETE /v1/caches/{name}/plan", s.deletePlans)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range s.Caches() {
			h.Filler().Stuck() // if a filler is deadlocked, this request gets no answer
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Ready() {
			fail(w, http.StatusServiceUnavailable, "the server is beginning or ending")
			return
		}
		lines := append([]string{"ok"}, s.Problems()...)
		for _, h := range s.Caches() {
			lines = append(lines, h.Problems()...)
		}
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	})
	mux.Handle("GET /metrics", s.MetricsHandler())
	there := "there are: GET /v1/caches and /v1/caches/NAME; GET, POST and DELETE /v1/caches/NAME/plan; " +
		"GET /stats, /healthz, /readyz, /metrics"
	if s.Page != nil {
		for _, path := range []string{"GET /{$}", "GET /page/", "GET /v1/live", "POST /v1/timeline"} {
			mux.Handle(path, s.Page)
		}
		there += ", /v1/live, and / for browsers"
	}
	if s.Configuration != nil {
		mux.Handle("POST /v1/reload", s.Configuration)
		mux.Handle("GET /v1/config", s.Configuration)
		there += ", POST /v1/reload, GET /v1/config"
	}
	if s.Open != nil {
		mux.HandleFunc("POST /v1/open", s.postOpen)
		mux.HandleFunc("POST /v1/objects", s.postObjects)
		mux.HandleFunc("POST /v1/part", s.postPart)
		mux.HandleFunc("POST /v1/ahead", s.postAhead)
		there += ", POST /v1/open, /v1/objects, /v1/part and /v1/ahead"
	}
	if s.Profiles {
		handleProfiles(mux)
		there += ", /debug/pprof/"
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, http.StatusNotFound, there) })
	return mux
}

// handleProfiles adds the handlers of net/http/pprof to this mux only. The package itself adds them
// to the default mux of every program.
func handleProfiles(mux *http.ServeMux) {
	long := func(h http.HandlerFunc) http.HandlerFunc { // a profile takes as many seconds as the request says
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

// endless removes the write deadline of an answer.
func endless(w http.ResponseWriter) {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
		return // the usual write deadline stays
	}
}

func (s *Host) answerAll(w http.ResponseWriter, _ *http.Request) {
	answers := []served.Status{}
	for _, h := range s.Caches() {
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

func (s *Host) answerOne(w http.ResponseWriter, name string) {
	h := s.Enter(name)
	if h == nil {
		fail(w, http.StatusNotFound, s.Absent(name))
		return
	}
	a, err := h.Status()
	h.Leave()
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, http.StatusOK, a)
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return // the operator is gone
	}
}

func fail(w http.ResponseWriter, code int, why string) {
	reply(w, code, map[string]string{"error": why})
}
