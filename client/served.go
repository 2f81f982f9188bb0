package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"
)

// Served is a Cache that a server fills. Everything of Cache works on it, with or without the server; Fetch and its kind ask the server for what is not there.
// Safe for use by many goroutines: their requests share one connection, which is made anew when the server is back after it was away. As many are under way as docs/spec/control.md
// lets one connection have; others wait, as long as their contexts let them.
type Served struct {
	*Cache
	link *link
}

// DialOptions say how to find a server. The zero value is the usual way.
type DialOptions struct {
	SocketsDir string        // folder of the server's sockets. "": $STOCACHED_SOCKETS_DIR, else the server's default
	Label      string        // of this program, shown by stats. "": its name
	Timeout    time.Duration // how long a server that is away is waited for, each time. 0: 2 seconds
}

// ErrNoServer is the error of what needs a server when there is none to reach, or when the one there does not answer who connects: then it is ErrTimeout as well. Hits go on without.
var ErrNoServer = errors.New("no server")

// ErrReplaced: the server has another cache of that name by now, because its source has changed. Dial again.
var ErrReplaced = errors.New("the server has replaced this cache")

// Dial connects to the server that has a cache of a name, and attaches to that cache. ErrNoServer with the command that starts one; a *RemoteError with CodeNotFound when it has no
// such cache; ErrInvalid when no cache can have that name; errors of Attach.
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
			own, err = attach(seg, l.label)
		}
		if err == nil {
			l.most = own.SampleBytes()
		}
		return err
	}
	if _, err := l.connection(ctx); err != nil {
		if own != nil { // it was attached, and then the time was over
			err = errors.Join(err, own.Close())
		}
		return nil, errors.Join(err, l.close())
	}
	return &Served{Cache: own, link: l}, nil
}

// link is the way to a server, not taken yet.
func (o DialOptions) link(name string) *link {
	l := &link{folder: sockets.Find(o.SocketsDir), label: cmp.Or(o.Label, cache.DefaultLabel()), timeout: cmp.Or(o.Timeout, 2*time.Second), name: name, mu: make(chan struct{}, 1)}
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// Close ends connection and handle. Requests under way fail with ErrClosed.
func (s *Served) Close() error { return errors.Join(s.link.close(), s.Cache.Close()) }

// RemoteError is what a server refused, with its code.
type RemoteError = control.RemoteError

// FetchError says which samples could not be had. The others were.
type FetchError struct {
	Failures []FetchFailure
}

// FetchFailure is one sample that could not be had.
type FetchFailure struct {
	Position int // in the indices that were asked for
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
