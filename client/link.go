package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// How long calls wait for a server that is away, unless the options say otherwise.
const (
	serverWait   = time.Minute     // for the restart of a server; C and Python wait as long
	pingWait     = 2 * time.Second // for the answer of a server, which is asked once
	announceWait = time.Second     // for what only makes reads faster
)

// link finds a server and holds the connection to it.
type link struct {
	folder      sockets.Folder
	label, name string
	timeout     time.Duration // each wait for a server that is away
	// attached is called on each new connection with the descriptor and the uuid of the cache.
	attached func(descriptor int, uuid [16]byte) error
	running  sync.WaitGroup  // goroutines of connections
	once     bool            // do not wait for a server that is away
	ctx      context.Context // ended by close
	cancel   context.CancelFunc

	// mu protects the fields below; it is full while a goroutine holds it, perhaps to connect for
	// all. It is no Mutex, because a goroutine that waits for it may give up.
	mu     chan struct{}
	conn   *conn                 // nil: none yet. It may be dead
	most   int                   // bytes of the largest sample of the cache, once it is attached
	plan   *control.AnnounceBody // plan that each new connection announces; nil: none
	closed bool
	missed struct { // the last failure to find a server
		at  time.Time
		err error
	}
}

// connection returns the live connection, or makes one. It waits for a server that is away or
// ending, as long as patience says. Errors: ErrNoServer, ErrClosed, the cause of the caller's context, a *RemoteError, and
// errors of attached.
func (l *link) connection(caller context.Context, patience time.Duration) (*conn, error) {
	asked := time.Now()
	select {
	case l.mu <- struct{}{}:
		defer func() { <-l.mu }()
	case <-caller.Done():
		return nil, context.Cause(caller)
	}
	if l.closed {
		return nil, fmt.Errorf("%w: the connection to the server was closed", ErrClosed)
	}
	if l.conn != nil && l.conn.alive() {
		return l.conn, nil
	}
	if l.missed.at.After(asked) { // another goroutine has just waited for the server
		return nil, l.missed.err
	}
	ctx, cancel := context.WithTimeout(caller, patience)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	c, err := l.connect(ctx, patience)
	for !l.once && errors.Is(err, errEnded) && rest(ctx) { // the next server may start soon
		c, err = l.connect(ctx, patience)
	}
	switch {
	case err == nil:
		l.running.Go(c.read)
		l.running.Go(c.write)
		l.conn = c
		return c, nil
	case l.ctx.Err() != nil:
		return nil, endedBy(ErrClosed)
	case caller.Err() != nil:
		return nil, errors.Join(context.Cause(caller), err)
	case errors.Is(err, errEnded):
		err = l.noServer(errors.New(err.Error())) // without errEnded, or the caller would try again
	}
	if errors.Is(err, ErrNoServer) {
		l.missed.at, l.missed.err = time.Now(), err
	}
	return nil, err
}

// connect makes a connection. It returns errors of find and greet, and errEnded when the server
// ends the connection.
func (l *link) connect(ctx context.Context, patience time.Duration) (*conn, error) {
	socket, err := l.find(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{link: l, socket: socket, requests: map[uint64]*pending{}, next: 3}
	c.wake.L = &c.sending
	deadline, _ := ctx.Deadline()
	c.socket.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.socket.SetDeadline(time.Unix(1, 0)) })
	err = l.greet(c)
	if !stop() && err == nil { // the AfterFunc may set that deadline at any time now
		err = os.ErrDeadlineExceeded
	}
	var remote *RemoteError
	switch {
	case err == nil:
		c.socket.SetDeadline(time.Time{})
		c.most = l.most
		return c, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET),
		errors.Is(err, unix.EPIPE), errors.As(err, &remote) && remote.Code == control.CodeClosing:
		err = endedBy(err) // the server is ending
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w: %s did not answer within %v (%w); it may be stopped or overloaded. Hits need no server",
			ErrNoServer, l.path(), patience, ErrTimeout)
	}
	c.socket.Close()
	return nil, err
}

// path returns the path of the socket.
func (l *link) path() string { return filepath.Join(l.folder.Path, control.DataSocket) }

// findPause is the pause between two attempts to find a server.
const findPause = 20 * time.Millisecond

// rest waits for findPause. It returns false if ctx ends first.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(findPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// find connects to the server. It tries again until ctx ends. It returns ErrNoServer, and
// ErrPermission for a server of another user.
func (l *link) find(ctx context.Context) (*net.UnixConn, error) {
	var why error
	for {
		socket, err := l.folder.Dial(ctx, control.DataSocket)
		if err == nil || errors.Is(err, ErrPermission) {
			return socket, err
		}
		if why == nil || ctx.Err() == nil { // later errors may only say that ctx has ended
			why = err
		}
		// The last error means that the queue of the server's socket is full.
		away := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN)
		if away && !l.once && rest(ctx) {
			continue
		}
		return nil, l.noServer(why)
	}
}

// noServer returns an ErrNoServer that tells the user the reason and the next step.
func (l *link) noServer(why error) error {
	return fmt.Errorf("%w answers on %s (%w); start it: stocached serve -c config.yaml (or set STOCACHED_SOCKETS_DIR to where it listens). Hits need no server", ErrNoServer,
		l.path(), why)
}

// greet sends HELLO, and ATTACH if the link names a cache.
func (l *link) greet(c *conn) error {
	frames := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: l.label})
	if l.name != "" {
		frames = control.AppendAttach(frames, 2, l.name)
	}
	// A server that hangs up may have sent the reason: DENIED.
	if _, err := c.socket.Write(frames); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	// Unbuffered: a descriptor comes with the first byte of its frame.
	body, descriptor, err := c.receive(control.Welcome)
	if err != nil {
		return err
	}
	if descriptor >= 0 {
		unix.Close(descriptor)
		return fmt.Errorf("%w: a descriptor came with %v", control.ErrProtocol, control.Welcome)
	}
	welcome, err := control.ParseWelcome(body)
	if err != nil {
		return err
	}
	if welcome.Version != control.Version {
		return fmt.Errorf("%w: the server speaks version %d, this client %d; use server and client of one release",
			control.ErrProtocol, welcome.Version, control.Version)
	}
	c.maxIndices = int(welcome.MaxIndices)
	if l.name == "" {
		return nil
	}
	body, descriptor, err = c.receive(control.Attached)
	if err != nil {
		return err
	}
	if descriptor < 0 {
		return fmt.Errorf("%w: no descriptor came with %v", control.ErrProtocol, control.Attached)
	}
	defer unix.Close(descriptor)
	fault.At("fetch.attached")
	m, err := control.ParseAttached(body)
	if err != nil {
		return err
	}
	c.cache = m.Cache
	if err := l.attached(descriptor, m.UUID); err != nil || l.plan == nil {
		return err
	}
	if _, err := c.socket.Write(c.announcement(3, l.plan)); err != nil {
		return err
	}
	_, _, err = c.receive(control.Announced)
	if remote := (*RemoteError)(nil); errors.As(err, &remote) && remote.Code != control.CodeClosing {
		return nil // it works without; Announce returns the reason to a caller
	}
	return err
}

// close ends the connection, and waits for the goroutines of all connections.
func (l *link) close() error {
	l.cancel()
	l.mu <- struct{}{}
	defer func() { <-l.mu }()
	l.closed = true
	if l.conn != nil {
		l.conn.die(ErrClosed)
	}
	l.running.Wait()
	return nil
}
