package client

import (
	"bufio"
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
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// sendTimeout bounds how long a server may take to take a request.
const sendTimeout = 30 * time.Second

// link is the way to a server: a connection while there is one.
type link struct {
	dir, label, name string
	timeout          time.Duration
	attached         func(descriptor int, uuid [16]byte) error // called on each new connection with what the server gave for the name
	readers          sync.WaitGroup                            // of connections
	once             bool                                      // a server that is not there is not waited for
	ended            context.Context                           // by close
	end              context.CancelFunc

	mu     sync.Mutex // protects what follows, and lets one goroutine connect for all
	conn   *conn      // nil: none yet. It may be dead
	closed bool
	missed struct { // the last time that there was no server to be found
		at  time.Time
		err error
	}
}

// conn is one connection. Its reader ends with it.
type conn struct {
	socket     *net.UnixConn
	cache      uint32 // number of the cache
	maxIndices int

	sending sync.Mutex // one frame at a time

	mu       sync.Mutex // protects what follows
	next     uint64
	requests map[uint64]*pending
	err      error // why it is dead
}

// pending is a request under way.
type pending struct {
	n      int                             // indices asked for
	sample func(position int, data []byte) // called for each sample that comes as bytes, valid during the call; not after the request was given up. nil: none may come

	mu      sync.Mutex // protects what follows, and is held while sample runs
	givenUp bool

	done     chan struct{} // closed when what follows is final
	failures []control.Failure
	queued   int // of a prefetch
	err      error
}

// connection returns a connection that was alive a moment ago, a new one if need be; a server that is away is waited for. ErrNoServer, ErrClosed, a *RemoteError, and errors of attached.
func (l *link) connection(caller context.Context) (*conn, error) {
	asked := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("%w: the connection to the server was closed", ErrClosed)
	}
	if l.conn != nil && l.conn.alive() {
		return l.conn, nil
	}
	if l.missed.at.After(asked) { // another goroutine has just waited for it
		return nil, l.missed.err
	}
	ctx, cancel := context.WithTimeout(caller, l.timeout)
	defer cancel()
	defer context.AfterFunc(l.ended, cancel)()
	socket, err := l.find(ctx)
	if err != nil && l.ended.Err() != nil {
		return nil, ended(ErrClosed)
	}
	if err != nil && caller.Err() != nil {
		return nil, errors.Join(context.Cause(caller), err)
	}
	if err != nil {
		l.missed.at, l.missed.err = time.Now(), err
		return nil, err
	}
	c := &conn{socket: socket, requests: map[uint64]*pending{}, next: 2}
	deadline, _ := ctx.Deadline()
	c.socket.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.socket.SetDeadline(time.Unix(1, 0)) })
	err = l.greet(c)
	if stop(); err != nil {
		c.socket.Close()
		switch {
		case caller.Err() != nil:
			err = context.Cause(caller)
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE):
			err = ended(err) // it is just ending
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = fmt.Errorf("%w: %s did not answer within %v; it may be stopped or overloaded. Hits go on without", ErrNoServer, l.path(), l.timeout)
		}
		return nil, err
	}
	c.socket.SetDeadline(time.Time{})
	l.readers.Go(c.read)
	l.conn = c
	return c, nil
}

// path is that of the socket.
func (l *link) path() string { return filepath.Join(l.dir, control.DataSocket) }

// findPause is how long it rests between two looks for a server.
const findPause = 20 * time.Millisecond

// find connects to the server, and looks again until ctx ends if there is none. ErrNoServer.
func (l *link) find(ctx context.Context) (*net.UnixConn, error) {
	var why error
	for {
		socket, err := new(net.Dialer).DialContext(ctx, "unix", l.path())
		if err == nil {
			return socket.(*net.UnixConn), nil
		}
		if why == nil || ctx.Err() == nil { // else it says no more than that the time is over
			why = err
		}
		away := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) // the last: its queue of connections is full
		if away && !l.once {
			select {
			case <-time.After(findPause):
				continue
			case <-ctx.Done():
			}
		}
		return nil, fmt.Errorf("%w answers on %s (%w); start it: stocached serve -c config.yaml. Hits go on without", ErrNoServer, l.path(), why)
	}
}

// greet says hello and attaches to the cache, if one is named.
func (l *link) greet(c *conn) error {
	frames := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: l.label})
	if l.name != "" {
		frames = control.AppendAttach(frames, 2, l.name)
	}
	if _, err := c.socket.Write(frames); err != nil {
		return err
	}
	// Unbuffered: a descriptor comes with the first byte of its frame.
	body, _, err := c.receive(control.Welcome)
	if err != nil {
		return err
	}
	welcome, err := control.ParseWelcome(body)
	if err != nil {
		return err
	}
	c.maxIndices = int(welcome.MaxIndices)
	if l.name == "" {
		return nil
	}
	body, descriptor, err := c.receive(control.Attached)
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
	return l.attached(descriptor, m.UUID)
}

// receive reads one frame of a type, with the descriptor that came along, -1 for none.
func (c *conn) receive(want control.Type) (body []byte, descriptor int, err error) {
	var header [control.HeaderBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, oob, _, _, err := c.socket.ReadMsgUnix(header[:], rights)
	descriptor = -1
	if messages, e := unix.ParseSocketControlMessage(rights[:oob]); e == nil && len(messages) > 0 {
		if fds, e := unix.ParseUnixRights(&messages[0]); e == nil && len(fds) > 0 {
			descriptor = fds[0]
			unix.CloseOnExec(descriptor)
		}
	}
	if err == nil {
		_, err = io.ReadFull(c.socket, header[n:]) // n is 0 at the end of the stream, and so is what is read
	}
	var h control.Header
	if err == nil {
		h, err = control.ParseHeader(header, false)
	}
	if err == nil {
		body = make([]byte, h.Length)
		_, err = io.ReadFull(c.socket, body)
	}
	if err == nil && h.Type == control.Error {
		var remote *RemoteError
		if remote, err = control.ParseError(body); err == nil {
			err = remote
		}
	} else if err == nil && h.Type != want {
		err = fmt.Errorf("%w: a %v, want %v", control.ErrProtocol, h.Type, want)
	}
	if err != nil && descriptor >= 0 {
		unix.Close(descriptor)
	}
	return body, descriptor, err
}

// errEnded marks a request whose connection ended under it: on a new one it may go well.
var errEnded = errors.New("the connection ended")

// ended is the error of such a request.
func ended(why error) error {
	if errors.Is(why, ErrClosed) {
		return fmt.Errorf("%w: the connection to the server was closed", ErrClosed)
	}
	return fmt.Errorf("%w any more: %w (%w)", ErrNoServer, errEnded, why)
}

func (c *conn) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil
}

// read hands answers to their requests until the connection ends.
func (c *conn) read() {
	r := bufio.NewReaderSize(c.socket, 64<<10)
	var body []byte
	var err error
	for err == nil {
		var h control.Header
		if h, err = control.ReadHeader(r, false); err != nil {
			break
		}
		if cap(body) < int(h.Length) {
			body = make([]byte, h.Length)
		}
		if _, err = io.ReadFull(r, body[:h.Length]); err == nil {
			err = c.take(h, body[:h.Length])
		}
	}
	c.die(err)
}

// die fails all requests.
func (c *conn) die(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	requests := c.requests
	c.requests = nil
	c.mu.Unlock()
	c.socket.Close()
	for _, p := range requests {
		p.err = ended(err)
		close(p.done)
	}
}

// take hands one answer on. An error ends the connection.
func (c *conn) take(h control.Header, body []byte) (err error) {
	if h.Type == control.Error && h.Request == 0 {
		remote, err := control.ParseError(body)
		if err != nil {
			return err
		}
		return remote
	}
	c.mu.Lock()
	p := c.requests[h.Request]
	if p != nil && h.Type != control.Sample {
		delete(c.requests, h.Request)
	}
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%w: a %v for request %d, which is not under way", control.ErrProtocol, h.Type, h.Request)
	}
	if h.Type == control.Sample && p.sample == nil {
		return fmt.Errorf("%w: a %v for request %d, which asked for none", control.ErrProtocol, h.Type, h.Request)
	}
	switch h.Type {
	case control.Sample:
		position, err := control.ParseSample(body)
		if err != nil || int(position) >= p.n {
			return errors.Join(err, fmt.Errorf("%w: a sample for position %d of %d", control.ErrProtocol, position, p.n))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.givenUp {
			p.sample(int(position), body[control.SampleBytes:])
			fault.At("fetch.sample")
		}
		return nil
	case control.Fetched:
		fault.At("fetch.answered")
		p.failures, err = control.ParseFetched(body, p.n)
	case control.Prefetched:
		p.queued, err = control.ParsePrefetched(body)
	case control.Error:
		var remote *RemoteError
		if remote, err = control.ParseError(body); err == nil {
			p.err = remote
		}
	default:
		err = fmt.Errorf("%w: a %v in answer to a request", control.ErrProtocol, h.Type)
	}
	if err != nil {
		p.err = err
	}
	close(p.done)
	return err
}

// do sends a FETCH or PREFETCH and waits for its answer. Without sample no bytes are sent: what gets no slot fails. When ctx ends first the request is cancelled, and sample is
// not called any more.
func (c *conn) do(ctx context.Context, t control.Type, indices []int64, sample func(position int, data []byte)) (*pending, error) {
	p := &pending{n: len(indices), sample: sample, done: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return nil, ended(err)
	}
	c.next++
	id := c.next
	c.requests[id] = p
	c.mu.Unlock()
	flags := uint32(0)
	if t == control.Fetch && sample == nil {
		flags = control.SlotsOnly
	}
	c.send(control.AppendFetch(nil, t, id, control.FetchBody{Cache: c.cache, Flags: flags, Indices: indices}))
	fault.At("fetch.sent")
	select {
	case <-p.done:
		p.mu.Lock()
		p.givenUp = true // the connection may have died while its reader was at a sample
		p.mu.Unlock()
		return p, p.err
	case <-ctx.Done():
		p.mu.Lock()
		p.givenUp = true
		p.mu.Unlock()
		c.send(control.AppendCancel(nil, id))
		return nil, context.Cause(ctx)
	}
}

// send writes a frame; a failure ends the connection, and so every request.
func (c *conn) send(frame []byte) {
	c.sending.Lock()
	c.socket.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := c.socket.Write(frame)
	c.sending.Unlock()
	if err != nil {
		c.die(err)
	}
}

// close ends the connection, and waits for the readers of all that there were.
func (l *link) close() error {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.conn != nil {
		l.conn.die(ErrClosed)
	}
	l.readers.Wait()
	return nil
}
