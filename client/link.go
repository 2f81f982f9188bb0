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
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// sendTimeout bounds how long a server may take to take a frame that it has begun to take.
const sendTimeout = 30 * time.Second

// link is the way to a server: a connection while there is one.
type link struct {
	folder      sockets.Folder
	label, name string
	timeout     time.Duration
	attached    func(descriptor int, uuid [16]byte) error // called on each new connection with what the server gave for the name
	running     sync.WaitGroup                            // goroutines of connections
	once        bool                                      // a server that is not there is not waited for
	ended       context.Context                           // by close
	end         context.CancelFunc

	mu     chan struct{} // full: somebody has what follows, and may be connecting for all. No Mutex: who waits for it may give up
	conn   *conn         // nil: none yet. It may be dead
	most   int           // bytes of a sample of the cache, once it is attached
	closed bool
	missed struct { // the last time that there was no server to be found
		at  time.Time
		err error
	}
}

// conn is one connection. Its reader and its writer end with it.
type conn struct {
	socket     *net.UnixConn
	cache      uint32 // number of the cache
	maxIndices int
	most       int // bytes of a sample

	mu       sync.Mutex // protects what follows
	next     uint64
	requests map[uint64]*pending // that the server has not answered, given up or not
	underWay int                 // indices of these
	room     chan struct{}       // closed when one of them ends; nil: nobody waits for that
	err      error               // why it is dead

	sending sync.Mutex // protects what follows
	wake    sync.Cond
	unsent  []outgoing
	writing bool // the writer has a frame, or what is left of one
	ended   bool
}

// outgoing is a frame that the server takes later: request is that which nothing was sent of yet, 0 for a frame that must go.
type outgoing struct {
	request uint64
	frame   []byte
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

// connection returns a connection that was alive a moment ago, a new one if need be; a server that is away, or just ending, is waited for. ErrNoServer, ErrClosed, the cause of the
// caller's context, a *RemoteError, and errors of attached.
func (l *link) connection(caller context.Context) (*conn, error) {
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
	if l.missed.at.After(asked) { // another goroutine has just waited for it
		return nil, l.missed.err
	}
	ctx, cancel := context.WithTimeout(caller, l.timeout)
	defer cancel()
	defer context.AfterFunc(l.ended, cancel)()
	c, err := l.connect(ctx)
	for !l.once && errors.Is(err, errEnded) && rest(ctx) { // the next one may be there soon
		c, err = l.connect(ctx)
	}
	switch {
	case err == nil:
		l.running.Go(c.read)
		l.running.Go(c.write)
		l.conn = c
		return c, nil
	case l.ended.Err() != nil:
		return nil, ended(ErrClosed)
	case caller.Err() != nil:
		return nil, errors.Join(context.Cause(caller), err)
	case errors.Is(err, errEnded):
		err = fmt.Errorf("%w answers on %s (%v); start it: stocached serve -c config.yaml. Hits go on without", ErrNoServer, l.path(), err)
	}
	if errors.Is(err, ErrNoServer) {
		l.missed.at, l.missed.err = time.Now(), err
	}
	return nil, err
}

// connect makes a connection. Errors of find and greet, and errEnded when the server hangs up.
func (l *link) connect(ctx context.Context) (*conn, error) {
	socket, err := l.find(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{socket: socket, requests: map[uint64]*pending{}, next: 2}
	c.wake.L = &c.sending
	deadline, _ := ctx.Deadline()
	c.socket.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.socket.SetDeadline(time.Unix(1, 0)) })
	err = l.greet(c)
	if !stop() && err == nil { // that deadline may come at any time now
		err = os.ErrDeadlineExceeded
	}
	var remote *RemoteError
	switch {
	case err == nil:
		c.socket.SetDeadline(time.Time{})
		c.most = l.most
		return c, nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) ||
		errors.As(err, &remote) && remote.Code == control.CodeClosing:
		err = ended(err) // it is just ending
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w: %s did not answer within %v (%w); it may be stopped or overloaded. Hits go on without", ErrNoServer, l.path(), l.timeout, ErrTimeout)
	}
	c.socket.Close()
	return nil, err
}

// path is that of the socket.
func (l *link) path() string { return filepath.Join(l.folder.Path, control.DataSocket) }

// findPause is how long it rests between two looks for a server.
const findPause = 20 * time.Millisecond

// rest lets time pass between two looks; false: there is none left.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(findPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// find connects to the server, and looks again until ctx ends if there is none. ErrNoServer, and ErrPermission for a server of somebody else.
func (l *link) find(ctx context.Context) (*net.UnixConn, error) {
	var why error
	for {
		socket, err := l.folder.Dial(ctx, control.DataSocket)
		if err == nil || errors.Is(err, ErrPermission) {
			return socket, err
		}
		if why == nil || ctx.Err() == nil { // else it says no more than that the time is over
			why = err
		}
		away := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) // the last: its queue of connections is full
		if away && !l.once && rest(ctx) {
			continue
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
	if _, err := c.socket.Write(frames); err != nil && !errors.Is(err, unix.EPIPE) { // it may have said why before it hung up: DENIED
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
	return l.attached(descriptor, m.UUID)
}

// receive reads one frame of a type, with the descriptor that came along, -1 for none.
func (c *conn) receive(want control.Type) (body []byte, descriptor int, err error) {
	var header [control.HeaderBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, oob, flags, _, err := c.socket.ReadMsgUnix(header[:], rights)
	descriptor = descriptorOf(rights[:oob])
	if err == nil && descriptor < 0 && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("%w: the descriptor that came with %v: %w", ErrSystem, want, unix.EMFILE) // this process may have no more
	}
	if err == nil {
		_, err = io.ReadFull(c.socket, header[n:]) // n is 0 at the end of the stream, and so is what is read
	}
	var h control.Header
	if err == nil {
		h, err = control.ParseHeader(header, false)
	}
	if err == nil && h.Type != want && h.Type != control.Error {
		err = fmt.Errorf("%w: a %v, want %v", control.ErrProtocol, h.Type, want)
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
	}
	if err != nil && descriptor >= 0 {
		unix.Close(descriptor)
	}
	return body, descriptor, err
}

// descriptorOf returns the first descriptor of a control message, -1 for none, and closes the others.
func descriptorOf(rights []byte) int {
	first := -1
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return first
	}
	for k := range messages {
		fds, err := unix.ParseUnixRights(&messages[k])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if first < 0 {
				first = fd
			} else {
				unix.Close(fd)
			}
		}
	}
	return first
}

// errEnded marks a request whose connection ended under it: on a new one it may go well.
var errEnded = errors.New("the connection ended")

// ended is the error of such a request. A server that says what cannot be will say it again.
func ended(why error) error {
	if errors.Is(why, ErrClosed) {
		return fmt.Errorf("%w: the connection to the server was closed", ErrClosed)
	}
	if errors.Is(why, control.ErrProtocol) {
		return why
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
		if h.Type == control.Sample && uint64(h.Length) > uint64(c.most)+control.SampleBytes {
			err = fmt.Errorf("%w: a %v of %d bytes, of a cache whose samples have %d at most", control.ErrProtocol, h.Type, h.Length, c.most)
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
	c.requests, c.underWay = nil, 0
	c.freed()
	c.mu.Unlock()
	c.sending.Lock()
	c.ended, c.unsent = true, nil
	c.wake.Signal()
	c.sending.Unlock()
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
		c.remove(h.Request, p)
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
	id, err := c.add(ctx, p)
	if err != nil {
		return nil, err
	}
	flags := uint32(0)
	if t == control.Fetch && sample == nil {
		flags = control.SlotsOnly
	}
	c.send(id, control.AppendFetch(nil, t, id, control.FetchBody{Cache: c.cache, Flags: flags, Indices: indices}))
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
		c.withdraw(id, p)
		return nil, context.Cause(ctx)
	}
}

// add gives a request its number. It waits while as many are under way as a connection may have, which a server counts until it has answered.
func (c *conn) add(ctx context.Context, p *pending) (id uint64, err error) {
	for {
		c.mu.Lock()
		if c.err != nil {
			err := c.err
			c.mu.Unlock()
			return 0, ended(err)
		}
		if len(c.requests) < control.MaxRequests && c.underWay+p.n <= control.MaxUnderWay {
			c.next++
			id = c.next
			c.requests[id] = p
			c.underWay += p.n
			c.mu.Unlock()
			return id, nil
		}
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// remove takes a request off, with mu held.
func (c *conn) remove(id uint64, p *pending) {
	delete(c.requests, id)
	c.underWay -= p.n
	c.freed()
}

// freed tells everybody who waits for it that there may be room, with mu held.
func (c *conn) freed() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// send hands a frame to the server, what it does not take at once to the writer: nobody waits for a server that is stopped.
func (c *conn) send(request uint64, frame []byte) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.ended {
		return
	}
	if len(c.unsent) == 0 && !c.writing {
		rest := c.writeNow(frame)
		if len(rest) == 0 {
			return
		}
		if len(rest) < len(frame) {
			request = 0
		}
		frame = rest
	}
	c.unsent = append(c.unsent, outgoing{request, frame})
	c.wake.Signal()
}

// writeNow writes what the server takes without anybody waiting for it, and returns what is left. With sending held, and nothing else to write before.
func (c *conn) writeNow(frame []byte) []byte {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return frame
	}
	n := 0
	_ = raw.Write(func(fd uintptr) bool {
		if n, err = unix.SendmsgN(int(fd), frame, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			n = 0 // the writer meets it again, and knows what to do
		}
		return true
	})
	return frame[n:]
}

// write writes what send left, until the connection ends. A failure ends the connection, and so every request.
func (c *conn) write() {
	c.sending.Lock()
	defer c.sending.Unlock()
	for {
		for len(c.unsent) == 0 && !c.ended {
			c.wake.Wait()
		}
		if c.ended {
			return
		}
		frame := c.unsent[0].frame
		c.unsent = c.unsent[1:]
		c.writing = true
		c.sending.Unlock()
		c.socket.SetWriteDeadline(time.Now().Add(sendTimeout))
		_, err := c.socket.Write(frame)
		c.socket.SetWriteDeadline(time.Time{}) // which would end writeNow as well
		if err != nil {
			c.die(err)
		}
		c.sending.Lock()
		c.writing = false
	}
}

// withdraw takes back a request that nobody waits for any more: what was not sent is not, and else the server is told.
func (c *conn) withdraw(id uint64, p *pending) {
	c.sending.Lock()
	at := slices.IndexFunc(c.unsent, func(o outgoing) bool { return o.request == id })
	if at >= 0 {
		c.unsent = slices.Delete(c.unsent, at, at+1)
	}
	c.sending.Unlock()
	if at < 0 {
		c.send(0, control.AppendCancel(nil, id))
		return
	}
	c.mu.Lock()
	if c.requests[id] == p {
		c.remove(id, p)
	}
	c.mu.Unlock()
}

// close ends the connection, and waits for the goroutines of all that there were.
func (l *link) close() error {
	l.end()
	l.mu <- struct{}{}
	defer func() { <-l.mu }()
	l.closed = true
	if l.conn != nil {
		l.conn.die(ErrClosed)
	}
	l.running.Wait()
	return nil
}
