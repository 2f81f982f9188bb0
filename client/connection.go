package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"

	"golang.org/x/sys/unix"
)

// sendTimeout bounds how long a server may take to receive a frame that it has begun to receive.
const sendTimeout = 30 * time.Second

// conn is one connection. Its reader and writer goroutines end with it.
type conn struct {
	link       *link
	socket     *net.UnixConn
	cache      uint32 // number of the cache
	maxIndices int
	most       int // bytes of the largest sample

	mu       sync.Mutex // protects the fields below
	next     uint64
	requests map[uint64]*pending // requests without an answer, cancelled ones too
	underWay int                 // indices of these requests
	room     chan struct{}       // closed when a request ends; nil: no goroutine waits for that
	err      error               // why the connection is dead

	sending sync.Mutex // protects the fields below
	wake    sync.Cond
	unsent  []outgoing
	writing bool // the writer is sending a frame
	ended   bool
}

// outgoing is a frame that the writer sends later. request is the number of a request of which no
// byte was sent; 0 for a frame that must be sent.
type outgoing struct {
	request uint64
	frame   []byte
}

// pending is an inflight request.
type pending struct {
	n int // number of indices
	// sample is called for each sample that comes as bytes, which are valid during the call. It is
	// not called after the request was given up. nil: no sample may come.
	sample func(position int, data []byte)

	mu      sync.Mutex // protects givenUp; held while sample runs
	givenUp bool

	done     chan struct{} // closed when the fields below are final
	failures []control.Failure
	queued   int  // samples that the server queued for a prefetch
	used     bool // the server uses a plan, or a tier takes a sample
	err      error
}

// receive reads one frame of a type, and the descriptor that comes with it; -1 for none.
func (c *conn) receive(expected control.Type) (body []byte, descriptor int, err error) {
	var header [control.HeaderBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, oob, flags, _, err := c.socket.ReadMsgUnix(header[:], rights)
	descriptor = descriptorOf(rights[:oob])
	if err == nil && descriptor < 0 && flags&unix.MSG_CTRUNC != 0 {
		// this process has too many descriptors
		err = fmt.Errorf("%w: the descriptor that came with %v: %w", ErrSystem, expected, unix.EMFILE)
	}
	if err == nil {
		_, err = io.ReadFull(c.socket, header[n:]) // n is 0 at the end of the stream, and ReadFull returns io.EOF
	}
	var h control.Header
	if err == nil {
		h, err = control.ParseHeader(header, false)
	}
	if err == nil && h.Type != expected && h.Type != control.Error {
		err = fmt.Errorf("%w: a %v, expected %v", control.ErrProtocol, h.Type, expected)
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

// descriptorOf returns the first descriptor of a control message, -1 for none, and closes the
// others.
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

// errEnded marks a request whose connection ended. A new connection may succeed.
var errEnded = errors.New("the connection ended")

// endedBy wraps the reason why a connection ended. It returns a protocol error as it is: that server
// would send the same again.
func endedBy(why error) error {
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

// read passes answers to their requests until the connection ends.
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
			err = fmt.Errorf("%w: a %v of %d bytes, of a cache whose samples have %d at most", control.ErrProtocol,
				h.Type, h.Length, c.most)
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

// die ends the connection and fails all requests.
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
		p.err = endedBy(err)
		close(p.done)
	}
}

// take passes one answer to its request. An error ends the connection.
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
		return fmt.Errorf("%w: a %v for request %d, which is not inflight", control.ErrProtocol, h.Type, h.Request)
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
	case control.Announced:
		p.used, err = control.ParseAnnounced(body)
	case control.Offered:
		p.used, err = control.ParseOffered(body)
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

// do sends a FETCH or PREFETCH and waits for its answer. If sample is nil, no bytes may come. When
// ctx ends first, do cancels the request, and sample is not called any more.
func (c *conn) do(ctx context.Context, t control.Type, flags uint32, indices []int64,
	sample func(position int, data []byte)) (*pending, error) {
	p := &pending{n: len(indices), sample: sample, done: make(chan struct{})}
	return c.exchange(ctx, p, func(id uint64) []byte {
		return control.AppendFetch(nil, t, id, control.FetchBody{Cache: c.cache, Flags: flags, Indices: indices})
	})
}

// exchange sends a request, whose frame depends on its number, and waits for its answer. Loads may be slow, so a server
// that gives none is asked on a new connection whether it answers at all.
func (c *conn) exchange(ctx context.Context, p *pending, frame func(id uint64) []byte) (*pending, error) {
	id, err := c.add(ctx, p)
	if err != nil {
		return nil, err
	}
	c.send(id, frame(id))
	fault.At("fetch.sent")
	patience := max(c.link.timeout, pingWait)
	silent := time.NewTimer(patience)
	defer silent.Stop()
	for {
		select {
		case <-p.done:
			p.mu.Lock()
			p.givenUp = true // the connection may have died while its reader called sample
			p.mu.Unlock()
			return p, p.err
		case <-silent.C:
			go c.ask(p, patience)
			silent.Reset(2 * patience)
		case <-ctx.Done():
			p.mu.Lock()
			p.givenUp = true
			p.mu.Unlock()
			c.withdraw(id, p)
			return nil, context.Cause(ctx)
		}
	}
}

// ask ends the connection if the server answers neither a request nor a new connection.
func (c *conn) ask(p *pending, patience time.Duration) {
	l := &link{folder: c.link.folder, label: c.link.label, once: true, mu: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(c.link.ctx)
	_, err := l.connection(l.ctx, patience)
	_ = l.close()
	select {
	case <-p.done:
	default:
		if errors.Is(err, ErrTimeout) { // one that ends takes no connections, and answers what it was asked
			c.die(err)
		}
	}
}

// add gives a request its number. It waits while the connection has as many inflight requests as
// the server allows. The server counts a request until it has answered.
func (c *conn) add(ctx context.Context, p *pending) (id uint64, err error) {
	for {
		c.mu.Lock()
		if c.err != nil {
			err := c.err
			c.mu.Unlock()
			return 0, endedBy(err)
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

// remove removes a request. The caller holds mu.
func (c *conn) remove(id uint64, p *pending) {
	delete(c.requests, id)
	c.underWay -= p.n
	c.freed()
}

// freed tells all waiting goroutines that a request has ended. The caller holds mu.
func (c *conn) freed() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// send sends a frame. The writer sends what the socket does not take at once, so no caller waits
// for a server that is stopped.
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

// writeNow writes what the socket takes at once, and returns the rest. The caller holds sending,
// and no earlier frame may be unsent.
func (c *conn) writeNow(frame []byte) []byte {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return frame
	}
	n := 0
	_ = raw.Write(func(fd uintptr) bool {
		if n, err = unix.SendmsgN(int(fd), frame, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			n = 0 // the writer meets and handles the same error
		}
		return true
	})
	return frame[n:]
}

// write sends the frames that send has queued, until the connection ends. A failure ends the
// connection and all its requests.
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
		c.socket.SetWriteDeadline(time.Time{}) // this deadline would end writeNow too
		if err != nil {
			c.die(err)
		}
		c.sending.Lock()
		c.writing = false
	}
}

// withdraw cancels a request that was given up. It removes an unsent frame, else it sends CANCEL.
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
