package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
)

// reloader applies a changed configuration to a running server: on a signal, and for operators on the admin socket.
type reloader struct {
	path    string
	began   *config.Config // the configuration at the start of the server
	level   *slog.LevelVar
	log     *slog.Logger
	manager manager

	mu      sync.Mutex                // held for a reload, and to read the fields below
	ctx     context.Context           // context of the server
	server  *server.Server            // nil: it is beginning
	last    *config.Config            // configuration of the last reload that was not refused
	inForce map[string]*config.Config // configuration of each cache that the server has of its file
}

// reloaded is the answer to POST /v1/reload.
type reloaded struct {
	Result string `json:"result"` // applied, partly or refused
	File   string `json:"file"`
	server.Changes
	NeedsRestart []string `json:"needs_restart"` // keys that have changed and need a new server
	Error        string   `json:"error"`         // why something was not applied

	err error
}

// The results of a reload.
const (
	resultApplied = "applied"
	resultPartly  = "partly"
	resultRefused = "refused"
)

// begin makes the reloader ready: the server runs until ctx ends.
func (r *reloader) begin(ctx context.Context, s *server.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.server, r.last, r.inForce = ctx, s, r.began, map[string]*config.Config{}
	r.served(r.began, nil)
}

// run reloads at each signal, until ctx ends.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		r.reload(ctx)
	}
}

func (r *reloader) status() string {
	status := fmt.Sprintf("serving %s on %s", table.Plural(r.server.Caches(), "cache"), r.server.Dir())
	if n := len(r.server.LeftOut()); n > 0 {
		status += fmt.Sprintf("; %d left out, the log says why", n)
	}
	return status
}

// reload applies the settings that can change while the server runs, and logs those that cannot. An
// invalid file changes nothing.
func (r *reloader) reload(ctx context.Context) reloaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.manager.reloading()
	did := r.apply(ctx)
	r.server.Reloaded(did.err)
	switch did.Result {
	case resultPartly:
		r.log.Error("a part of the new configuration was not applied", "file", r.path, "error", did.err)
	case resultRefused:
		r.log.Error("the new configuration was not applied", "file", r.path, "error", did.err)
	default:
		r.log.Info("the new configuration is in force", "file", r.path, "caches", r.server.Caches())
	}
	if ctx.Err() == nil { // else the manager already knows that the server ends
		r.manager.ready(r.status())
	}
	return did
}

func (r *reloader) apply(ctx context.Context) reloaded {
	did := reloaded{Result: resultRefused, File: r.path}
	next, err := config.Load(r.path)
	if err == nil {
		did.Changes, err = r.server.Reload(ctx, next.Options(r.log))
	}
	if err != nil {
		did.Error, did.err = err.Error(), err
	}
	if err != nil && !errors.Is(err, server.ErrPartly) {
		return did
	}
	if did.Result = resultApplied; err != nil {
		did.Result = resultPartly
	}
	r.level.Set(next.LogLevel())
	did.NeedsRestart = r.began.NeedsRestart(next)
	for _, key := range did.NeedsRestart {
		r.log.Warn("a setting has changed that needs a restart", "key", key)
	}
	r.last = next
	r.served(next, did.Failed)
	return did
}

// served notes which configuration the server's caches have: next, but those that failed an earlier one. It also
// removes the caches that left the file while no server ran.
func (r *reloader) served(next *config.Config, failed []string) {
	removeLeft(r.server.Dir(), r.path, next.Options(r.log).Caches, r.log)
	before := r.inForce
	r.inForce = map[string]*config.Config{}
	for _, c := range next.Caches {
		switch {
		case !r.server.Has(c.Name):
		case slices.Contains(failed, c.Name):
			r.inForce[c.Name] = before[c.Name]
		default:
			r.inForce[c.Name] = next
		}
	}
}

// settings are the keys in force in the running server.
func (r *reloader) settings() []config.Setting {
	return append(r.began.After(r.last), r.last.CacheSettingsOf(func(name string) *config.Config { return r.inForce[name] })...)
}

// ServeHTTP answers POST /v1/reload and GET /v1/config. A reload goes on if its operator hangs up.
func (r *reloader) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	ctx, began := r.ctx, r.server != nil
	r.mu.Unlock()
	var answer any
	status := http.StatusOK
	switch {
	case !began:
		status, answer = http.StatusServiceUnavailable, map[string]string{"error": "the server is beginning"}
	case request.Method == http.MethodPost:
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // a large source takes long to open
		answer = r.reload(ctx)
	default:
		r.mu.Lock()
		answer = r.settings()
		r.mu.Unlock()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // an operator who is gone needs none
}
