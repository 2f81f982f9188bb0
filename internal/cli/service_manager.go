package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// manager is the service manager that started this process: systemd, or a program with its
// protocols. Without one, notify does nothing.
type manager struct{ log *slog.Logger }

// notify sends the manager lines of variables (sd_notify(3)).
func (m manager) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		m.log.Warn("the service manager could not be notified", "state", state, "error", err)
	}
}

func (m manager) ready(status string) { m.notify(systemd.SdNotifyReady + "\nSTATUS=" + status) }
func (m manager) stopping()           { m.notify(systemd.SdNotifyStopping + "\nSTATUS=ending") }
func (m manager) reloading() {
	m.notify(systemd.SdNotifyReloading + "\n" + systemd.SdNotifyMonotonicUsec() + "STATUS=reading the configuration")
}

// watch notifies the watchdog of the manager three times in its interval, but only if the server in
// a folder of sockets answers clients and operators. It returns when ctx ends, or at once if the
// manager has no watchdog.
func (m manager) watch(ctx context.Context, sockets string) {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		m.log.Error("the service manager has a watchdog with an invalid interval", "error", err)
	}
	if err != nil || interval == 0 {
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for failing := false; ; {
		err := answers(ctx, sockets, interval/3)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			m.notify(systemd.SdNotifyWatchdog)
		case !failing:
			m.log.Error("this server does not answer its own requests; the service manager will end it unless it does",
				"within", interval, "error", err)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// answers returns an error unless the server answers on both sockets.
func answers(ctx context.Context, sockets string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := stocclient.Ping(ctx, "",
		stocclient.DialOptions{SocketsDir: sockets, Label: "watchdog", Timeout: within}); err != nil {
		return err
	}
	status, body, err := admin{sockets}.get(ctx, "/healthz")
	if err == nil && status != http.StatusOK {
		err = errors.New(complaint(status, body))
	}
	return err
}

// inherit gives a server the sockets that the manager has opened for it (socket activation), by
// their names. Errors: ErrInvalid for other sockets.
func inherit(o *server.Options) (err error) {
	named, err := activation.ListenersWithNames()
	if err != nil {
		return fmt.Errorf("sockets of the service manager: %w", err)
	}
	defer func() {
		if err != nil {
			for _, all := range named {
				for _, l := range all {
					err = errors.Join(err, l.Close())
				}
			}
		}
	}()
	places := map[string]**net.UnixListener{control.DataSocket: &o.DataSocket, control.AdminSocket: &o.AdminSocket}
	folder := ""
	for name, all := range named {
		place := places[name]
		if place == nil || len(all) != 1 {
			return fmt.Errorf("%w: the service manager gives %s named %q; it may give one %s and one %s "+
				"(FileDescriptorName= in a socket unit)", shm.ErrInvalid, table.Plural(len(all), "socket"), name,
				control.DataSocket, control.AdminSocket)
		}
		l, ok := all[0].(*net.UnixListener)
		path := all[0].Addr().String()
		if !ok || filepath.Base(path) != name || cmp.Or(folder, filepath.Dir(path)) != filepath.Dir(path) {
			return fmt.Errorf("%w: the service manager gives the socket %s for %s; clients need unix stream "+
				"sockets %s and %s in one folder (ListenStream= in a socket unit)", shm.ErrInvalid,
				path, name, control.DataSocket, control.AdminSocket)
		}
		folder = filepath.Dir(path)
		l.SetUnlinkOnClose(false) // the manager owns the file
		*place = l
	}
	return nil
}
