package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
)

// reloader applies a changed configuration to a running server.
type reloader struct {
	path    string
	began   *config.Config // the configuration at the start of the server
	level   *slog.LevelVar
	log     *slog.Logger
	server  *server.Server
	manager manager
}

// run reloads at each signal, until ctx ends.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		r.manager.reloading()
		err := r.reload(ctx)
		r.server.Reloaded(err)
		if errors.Is(err, server.ErrPartly) {
			r.log.Error("a part of the new configuration was not applied", "file", r.path, "error", err)
		} else if err != nil {
			r.log.Error("the new configuration was not applied", "file", r.path, "error", err)
		}
		if ctx.Err() == nil { // else the manager already knows that the server ends
			r.manager.ready(r.status())
		}
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
func (r *reloader) reload(ctx context.Context) error {
	next, err := config.Load(r.path)
	if err != nil {
		return err
	}
	partly := r.server.Reload(ctx, next.Options(r.log))
	if partly != nil && !errors.Is(partly, server.ErrPartly) {
		return partly
	}
	r.level.Set(next.LogLevel())
	for _, key := range r.began.NeedsRestart(next) {
		r.log.Warn("a setting has changed that needs a restart", "key", key)
	}
	if partly != nil {
		return partly
	}
	r.log.Info("the new configuration is in force", "file", r.path, "caches", r.server.Caches())
	return nil
}
