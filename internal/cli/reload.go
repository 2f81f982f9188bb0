package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
)

// reloader takes a changed configuration on in a running server.
type reloader struct {
	path    string
	began   *config.Config // with what the server was started
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
		if err := r.reload(ctx); err != nil {
			r.log.Error("the configuration was not taken on, or not all of it", "file", r.path, "error", err)
		}
		if ctx.Err() == nil { // else it has been told otherwise
			r.manager.ready(r.status())
		}
	}
}

func (r *reloader) status() string {
	status := fmt.Sprintf("serving %s on %s", plural(r.server.Caches(), "cache"), r.server.Dir())
	if n := len(r.server.LeftOut()); n > 0 {
		status += fmt.Sprintf("; %d left out, the log says why", n)
	}
	return status
}

// reload takes on what can change while the server runs, and says what cannot. A file that is not
// good changes nothing.
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
		r.log.Warn("the configuration says otherwise than when this server started: that needs a restart", "key", key)
	}
	if partly != nil {
		return partly
	}
	r.log.Info("the configuration was taken on", "file", r.path, "caches", r.server.Caches())
	return nil
}
