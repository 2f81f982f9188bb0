package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"
)

// Served is a Cache that a server fills. All methods of Cache work, also without the server. Fetch
// and the similar methods ask the server for misses. A Served is safe for concurrent use: requests
// share one connection, which is made again after the server was away. docs/spec/control.md limits
// the inflight requests of a connection; further requests wait, at most until their contexts end.
type Served struct {
	*Cache
	link *link
	away atomic.Int64 // until when the server of programs is not asked, because it was away, by package clock
}

// DialOptions say how to find a server. The zero value finds the user's default server.
type DialOptions struct {
	SocketsDir string // folder of the server's sockets. "": $STOCACHED_SOCKETS_DIR, else the server's default
	Label      string // name of this program in stats. "": its own name
	Policy     string // the cache must have the policy of this name, else ErrInvalid. "": not compared
	// Timeout bounds each wait for a server that is away. 0: a minute, so that a program can start and go on while the
	// server restarts; 2 seconds in Ping. A fetch without an answer for so long, or 2 seconds if that is longer, asks on a
	// new connection: it returns ErrNoServer after three times as long if the server is stopped. It waits for slow loads
	// until its context ends.
	Timeout time.Duration
}

// ErrNoServer: a call needs a server, and none can be reached. If the server does not answer a new
// connection, the error matches ErrTimeout too. Hits need no server.
var ErrNoServer = errors.New("no server")

// ErrReplaced: the server has another cache of that name now, because its source has changed. Dial
// again.
var ErrReplaced = errors.New("the server has replaced this cache")

// Dial connects to the server that has the named cache, and attaches to that cache. Errors:
// ErrNoServer with the command that starts a server; a *RemoteError with CodeNotFound when the
// server has no such cache; ErrInvalid for an invalid name or another policy; errors of Attach.
func Dial(ctx context.Context, name string, o DialOptions) (*Served, error) {
	if err := shm.CheckName(name); err != nil {
		return nil, err
	}
	l := o.link(name)
	var own *Cache
	l.attached = func(descriptor int, uuid [16]byte) error {
		if own != nil && uuid == own.seg.Header.UUID {
			return nil
		}
		if own != nil {
			return fmt.Errorf("%w: %s; close this handle and dial again", ErrReplaced, name)
		}
		seg, err := shm.OpenFD(descriptor, shm.OpenOptions{UUID: &uuid})
		if err == nil {
			own, err = attach(seg, l.label, o.Policy, nil)
		}
		if err == nil {
			l.most = own.sampleBytes()
		}
		return err
	}
	if _, err := l.connection(ctx, l.timeout); err != nil {
		if own != nil { // it was attached before the deadline passed
			err = errors.Join(err, own.Close())
		}
		return nil, errors.Join(err, l.close())
	}
	return &Served{Cache: own, link: l}, nil
}

// link makes a link that has not connected yet.
func (o DialOptions) link(name string) *link {
	l := &link{folder: sockets.Find(o.SocketsDir), label: cmp.Or(o.Label, cache.DefaultLabel()),
		timeout: cmp.Or(o.Timeout, serverWait), name: name, mu: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Close ends the connection and the handle. Inflight requests fail with ErrClosed.
func (s *Served) Close() error { return errors.Join(s.link.close(), s.Cache.Close()) }

// RemoteError is the refusal of a server, with its Code and its Text. Method Error joins them.
type RemoteError = control.RemoteError

// FetchError says which samples the server could not give. All others were copied.
type FetchError struct {
	Failures []FetchFailure
}

// FetchFailure is one sample that the server could not give.
type FetchFailure struct {
	Position int // in the indices of the call
	Index    int
	Code     control.Code
	Text     string
}

func (e *FetchError) Error() string {
	f := e.Failures[0]
	text := fmt.Sprintf("sample %d: %v: %s", f.Index, f.Code, f.Text)
	if n := len(e.Failures) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}
