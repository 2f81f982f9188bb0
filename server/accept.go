package server

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// acceptPause is how long the server waits after a failed accept.
const acceptPause = 100 * time.Millisecond

// retryingListener keeps accepting after the process has run out of descriptors. Connected clients
// go on, new ones wait. It logs the start and the end of such a time once each.
type retryingListener struct {
	*net.UnixListener
	log *slog.Logger
}

// AcceptUnix returns the next connection. Its only error is net.ErrClosed.
func (l retryingListener) AcceptUnix() (*net.UnixConn, error) {
	for waiting := false; ; {
		c, err := l.UnixListener.AcceptUnix()
		switch {
		case err == nil:
			if waiting {
				l.log.Info("connections are accepted again", "socket", l.Addr())
			}
			return c, nil
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case !waiting:
			l.log.Error("no connection can be accepted, and new clients have to wait; end clients, or raise the "+
				"limit of open files (ulimit -n, LimitNOFILE= in a unit file)",
				"socket", l.Addr(), "error", err)
			waiting = true
		}
		time.Sleep(acceptPause)
	}
}
