package server

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// acceptPause is how long the server waits after an accept has failed.
const acceptPause = 100 * time.Millisecond

// retryingListener accepts connections even after the process ran out of descriptors: connected
// clients go on, and others wait. It logs the begin and the end of that once each.
type retryingListener struct {
	*net.UnixListener
	log *slog.Logger
}

// AcceptUnix returns the next connection. net.ErrClosed, and no other error.
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
			l.log.Error("no connection can be accepted, and who connects has to wait; end clients, or raise the "+
				"limit of open files (ulimit -n, LimitNOFILE= in a unit file)",
				"socket", l.Addr(), "error", err)
			waiting = true
		}
		time.Sleep(acceptPause)
	}
}
