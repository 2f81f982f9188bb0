// Package session serves one client on the data socket. docs/spec/control.md specifies the
// protocol.
//
// A Connection (connection.go) reads the frames of a client and asks the filler of a served cache
// for samples. Its output (output.go) writes the answers. No other client waits for either. All
// connections of a server share two Budgets of memory (budget.go). The package imports served and
// fill, and knows its server only as a Host.
package session

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/jobs"
	"github.com/stocached/stocached/server/served"
)

// FrameTimeout is how long a frame may take from its first byte on. Tests change it.
var FrameTimeout = 10 * time.Second

// Host is what connections need from their server.
type Host struct {
	Boot     [16]byte // identifies this start of the server
	Log      *slog.Logger
	Replies  *Budget // memory of samples and answers that wait to be written
	Requests *Budget // memory of requests under way
	// enters a cache; the caller must leave it; nil: there is none of that name
	Enter   func(name string) *served.Cache
	Absent  func(name string) string // says why there is none
	Ending  func() bool
	Drained func()         // called when a client can again take samples without a slot
	slow    fewlines.Limit // clients that read no answers, in the log
}

// Connection is one client on the data socket. One goroutine reads its frames and another one
// writes. No other goroutine waits for the client.
type Connection struct {
	host   *Host
	socket *net.UnixConn
	out    *output
	label  string // the name that the client gives itself

	reserved int                             // bytes reserved for the current frame
	caches   []*served.Cache                 // by the number that the client uses
	queues   map[*served.Cache]*clientQueues // queues of this client in the fillers
	jobs     map[*served.Cache]*jobs.Job     // jobs that this client announced

	mu         sync.Mutex          // protects the fields below
	requests   map[uint64]*request // fetches under way, by the client's numbers
	prefetches map[*request]bool   // under way; each was answered at once, so the client may reuse its number
	underWay   int                 // indices of fetches
	prefetched int                 // indices of prefetches
}

// clientQueues has the queues of one client for one cache.
type clientQueues struct{ fetches, prefetches *fill.Queue }

// request is a FETCH or PREFETCH under way.
type request struct {
	connection *Connection
	id         uint64
	reserved   int  // bytes that the connection has reserved for it
	prefetch   bool // the client does not wait for its samples
	slotsOnly  bool
	cached     *served.Cache
	filler     *fill.Filler
	samples    *fill.Request
	answerNow  func() // ends the wait for a load of another program; nil: no such wait. Protected by connection.mu
	cancelled  bool   // likewise
}

// CanTake says whether n more bytes of a sample without a slot may wait for the client.
func (r *request) CanTake(n int) bool {
	return r.prefetch || r.slotsOnly || r.connection.out.canTake(n)
}

// Take sends a sample without a slot to the client.
func (r *request) Take(position uint32, data *fill.Buffer) bool {
	if r.prefetch || r.slotsOnly {
		return false
	}
	r.connection.out.sample(r.id, position, data)
	return true
}

// Done answers the client after the last sample.
func (r *request) Done(_ *fill.Request, failures []control.Failure) {
	if !r.waits(failures) {
		r.connection.ended(r, failures)
	}
}

// LongestWait is how long an answer waits for loads of other programs. Clients have longer timeouts. Tests
// change it.
var LongestWait = 100 * time.Millisecond

// waits says whether the answer waits for the end of a load: if programs of this node load all samples that have
// failed, so that the client would only ask again.
func (r *request) waits(failures []control.Failure) bool {
	if r.samples.Loads == nil || len(failures) == 0 {
		return false
	}
	indices := make([]int, 0, len(failures))
	for _, f := range failures {
		if f.Code != control.CodeLoading {
			return false
		}
		indices = append(indices, r.samples.Index(f.Position))
	}
	c := r.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.cancelled {
		return false
	}
	r.answerNow = r.cached.WhenLoaded(indices, LongestWait, func() { c.ended(r, failures) })
	return r.answerNow != nil
}

func (r *request) cancel() {
	r.filler.Cancel(r.samples)
	r.connection.mu.Lock()
	now := r.answerNow
	r.cancelled = true
	r.connection.mu.Unlock()
	if now != nil {
		now()
	}
}

// New makes the connection of an accepted client.
func New(h *Host, socket *net.UnixConn) *Connection {
	c := &Connection{host: h, socket: socket, queues: map[*served.Cache]*clientQueues{},
		jobs:     map[*served.Cache]*jobs.Job{},
		requests: map[uint64]*request{}, prefetches: map[*request]bool{}}
	c.out = newOutput(socket, h.Drained)
	c.out.replies, c.out.requests = h.Replies, h.Requests
	return c
}

// Refuse answers with DENIED only.
func (c *Connection) Refuse(text string) {
	c.out.send(control.AppendError(nil, 0, control.CodeDenied, text))
	c.out.end()
	if err := c.out.run(); err != nil {
		c.host.Log.Debug("a refused client was not told why", "error", err)
	}
}

// Drain reads no more frames, writes what is queued until a deadline, and ends the connection.
func (c *Connection) Drain(deadline time.Time) {
	c.out.setDeadline(deadline)
	if err := c.socket.CloseRead(); err != nil { // ends the reader; Serve then writes the rest
		c.socket.Close() // the client is gone
	}
}

// Waiting returns how many bytes of samples wait to be written.
func (c *Connection) Waiting() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.waiting
}

// smallBody is the largest frame that needs no reservation of memory. An idle connection keeps a
// buffer of that size.
const smallBody = 64 << 10

// reserve takes n bytes for a request, and waits until there are some. false: the server ends, or the
// client is gone.
func (c *Connection) reserve(n int) bool {
	ok := c.out.reserve(n)
	if ok {
		c.reserved = n
	}
	return ok
}

// Serve talks with the client until one side ends the connection.
func (c *Connection) Serve() {
	defer c.forget()
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		if err := c.out.run(); err != nil {
			if about := c.host.slow.Add("client", c.label, "error", err); about != nil {
				c.host.Log.Info("a client reads no answers; its connection is closed", about...)
			}
			c.out.abort()
		}
		c.socket.Close() // ends the reader, if it still runs
	}()
	err := c.read()
	c.out.unreserve(c.reserved)
	c.cancelAll()
	var remote *control.RemoteError
	switch {
	case errors.As(err, &remote):
		c.out.send(control.AppendError(nil, 0, remote.Code, remote.Text))
	case errors.Is(err, control.ErrProtocol):
		c.out.send(control.AppendError(nil, 0, control.CodeProtocol, err.Error()))
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.out.send(control.AppendError(nil, 0, control.CodeProtocol,
			fmt.Sprintf("a frame took more than %v to arrive", FrameTimeout)))
	case errors.Is(err, io.EOF) &&
		c.host.Ending(): // which has ended this reader; all requests have answers
	default:
		c.out.abort() // the client is gone
	}
	c.out.end()
	<-writer
}

// read takes frames until there are none. nil and io errors: the client is gone. Serve sends any
// other error to the client.
func (c *Connection) read() error {
	r := bufio.NewReaderSize(c.socket, 4096)
	body := []byte(nil)
	for first := true; ; first = false {
		c.out.waitForRoom()
		if _, err := r.Peek(1); err != nil { // between frames a client may pause forever
			return err
		}
		waits := !whole(r)
		if waits { // a deadline costs more than reading what has arrived
			if err := c.socket.SetReadDeadline(time.Now().Add(FrameTimeout)); err != nil {
				return err
			}
		}
		h, err := control.ReadHeader(r, true)
		if err != nil {
			return err
		}
		if h.Length > smallBody { // memory for the frame and for its request
			n := int(h.Length) / 8 * indexBytes
			if h.Type == control.Offer {
				if n, err = c.offered(h); err != nil {
					return err
				}
			}
			if !c.reserve(n) {
				return io.EOF
			}
			// its time starts here
			if err := c.socket.SetReadDeadline(time.Now().Add(FrameTimeout)); err != nil {
				return err
			}
			waits = true
		}
		if cap(body) < int(h.Length) {
			body = make([]byte, h.Length)
		}
		if _, err := io.ReadFull(r, body[:h.Length]); err != nil {
			return err
		}
		if waits {
			if err := c.socket.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
		}
		if err := c.take(h, body[:h.Length], first); err != nil {
			return err
		}
		c.out.unreserve(c.reserved) // unless a request has taken it over
		c.reserved = 0
		if cap(body) > smallBody {
			body = nil // an idle connection keeps no large buffer
		}
	}
}

// whole says whether the next frame has arrived completely.
func whole(r *bufio.Reader) bool {
	frame, err := r.Peek(r.Buffered())
	if err != nil || len(frame) < control.HeaderBytes {
		return false
	}
	h, err := control.ParseHeader([control.HeaderBytes]byte(frame), true)
	return err != nil || len(frame)-control.HeaderBytes >= int(h.Length) // an invalid frame needs no wait
}

// take handles a frame. An error ends the connection.
func (c *Connection) take(h control.Header, body []byte, first bool) error {
	switch {
	case first != (h.Type == control.Hello):
		return fmt.Errorf("%w: HELLO must be the first frame of a connection, and only the first", control.ErrProtocol)
	case h.Request == 0:
		return fmt.Errorf("%w: a %v with request 0", control.ErrProtocol, h.Type)
	}
	switch h.Type {
	case control.Hello:
		m, err := control.ParseHello(body)
		if err != nil {
			return err
		}
		if m.Version != control.Version {
			return &control.RemoteError{Code: control.CodeVersion,
				Text: fmt.Sprintf("this server speaks version %d of the protocol, the client %d; use server and client of one release",
					control.Version, m.Version)}
		}
		c.label = m.Label
		c.out.send(control.AppendWelcome(nil, h.Request,
			control.WelcomeBody{Version: control.Version, MaxIndices: control.MaxIndices, Boot: c.host.Boot}))
	case control.Attach:
		name, err := control.ParseAttach(body)
		if err != nil {
			return err
		}
		c.attach(h.Request, name)
	case control.Fetch, control.Prefetch:
		m, err := control.ParseFetch(h.Type, body)
		if err != nil {
			return err
		}
		return c.fetch(h, m)
	case control.Announce:
		m, err := control.ParseAnnounce(body)
		if err != nil {
			return err
		}
		c.announce(h.Request, m)
	case control.Offer:
		m, err := control.ParseOffer(body)
		if err != nil {
			return err
		}
		c.offer(h.Request, m)
	case control.Cancel:
		if len(body) != 0 {
			return fmt.Errorf("%w: a CANCEL of %d bytes", control.ErrProtocol, len(body))
		}
		c.mu.Lock()
		r := c.requests[h.Request]
		c.mu.Unlock()
		if r != nil {
			r.cancel()
		}
	}
	return nil
}

// refuse answers a request with an error.
func (c *Connection) refuse(request uint64, code control.Code, format string, a ...any) {
	c.out.send(control.AppendError(nil, request, code, fmt.Sprintf(format, a...)))
}

func (c *Connection) attach(request uint64, name string) {
	h := c.host.Enter(name)
	if h == nil && c.host.Ending() {
		c.refuse(request, control.CodeClosing, "the server is ending")
		return
	}
	if h == nil {
		c.refuse(request, control.CodeNotFound, "%s", c.host.Absent(name))
		return
	}
	defer h.Leave()
	descriptor, err := h.Segment().Reopen()
	if err != nil {
		c.refuse(request, control.CodeInternal, "%v", err)
		return
	}
	number := slices.Index(c.caches, h)
	if number < 0 {
		number = len(c.caches)
		c.caches = append(c.caches, h) // the number of a cache never changes: the client knows the cache by it
		c.queues[h] = &clientQueues{fill.NewQueue(false, c.out.full), fill.NewQueue(true, func() bool { return false })}
		h.Connect()
	}
	c.out.sendDescriptor(control.AppendAttached(nil, request,
		control.AttachedBody{Cache: uint32(number), UUID: h.Segment().Header.UUID}), descriptor)
}

// forget tells the caches that the client is gone.
func (c *Connection) forget() {
	for _, h := range c.caches {
		h.EndJob(c.jobs[h], c)
		h.EndLoads(c)
		h.Disconnect()
	}
}

// attached says whether the client has attached to the cache with this number; false: it has refused the request.
func (c *Connection) attached(request uint64, number uint32) bool {
	if number >= uint32(len(c.caches)) {
		c.refuse(request, control.CodeNotFound, "cache %d was not attached to on this connection", number)
		return false
	}
	return true
}

// enter returns the cache with this number, which the caller leaves. nil: it has refused the request.
func (c *Connection) enter(request uint64, number uint32) *served.Cache {
	if !c.attached(request, number) {
		return nil
	}
	h := c.caches[number]
	if !h.Enter() {
		c.refuse(request, control.CodeClosing, "the server is ending, or has removed this cache")
		return nil
	}
	return h
}

// announce handles an ANNOUNCE.
func (c *Connection) announce(request uint64, m control.AnnounceBody) {
	h := c.enter(request, m.Cache)
	if h == nil {
		return
	}
	defer h.Leave()
	if m.Flags == control.Withdraw {
		h.Withdraw(m.Owner)
		delete(c.jobs, h)
		c.out.send(control.AppendAnnounced(nil, request, false))
		return
	}
	job, err := h.Announce(jobs.Plan{
		Order: order.Order{Samples: m.Samples, Kind: order.Kind(m.Kind), Seed: m.Seed, Window: m.Window, Block: m.Block},
		Epoch: m.Epoch, Shard: order.Shard{Rank: m.Rank, Ranks: m.Ranks, From: m.Position, Ends: order.Ends(m.Ends)},
		Owner: m.Owner, Reads: m.Reads, Batch: uint64(m.Batch), Told: m.Flags == control.Told, By: c})
	switch {
	case errors.Is(err, jobs.ErrManyJobs):
		c.refuse(request, control.CodeLimit, "%v", err)
	case err != nil:
		c.refuse(request, control.CodeInvalid, "%v", err)
	default:
		if job != nil {
			c.jobs[h] = job
		}
		c.out.send(control.AppendAnnounced(nil, request, job != nil))
	}
}

// offered returns the bytes of a large OFFER. ErrProtocol: no sample of an attached cache has so many.
func (c *Connection) offered(h control.Header) (int, error) {
	most := uint64(0)
	for _, one := range c.caches {
		if one.Enter() {
			most = max(most, one.Segment().Header.SampleBytes)
			one.Leave()
		}
	}
	if uint64(h.Length) > control.OfferBytes+most {
		return 0, fmt.Errorf("%w: an OFFER of %d bytes; samples have %d at most", control.ErrProtocol, h.Length, most)
	}
	return int(h.Length), nil
}

// offer handles an OFFER.
func (c *Connection) offer(request uint64, m control.OfferBody) {
	h := c.enter(request, m.Cache)
	if h == nil {
		return
	}
	defer h.Leave()
	if m.Flags != 0 {
		if m.Flags == control.Damaged {
			h.Damaged(int(m.Index), control.Printable(string(m.Sample)))
		} else {
			h.EndLoad(int(m.Index))
		}
		c.out.send(control.AppendOffered(nil, request, false))
		return
	}
	taken, err := h.Offer(int(m.Index), m.Sample)
	if err != nil {
		c.refuse(request, control.CodeInvalid, "%v", err)
		return
	}
	c.out.send(control.AppendOffered(nil, request, taken))
}

// fetch handles a FETCH or PREFETCH. An error ends the connection.
func (c *Connection) fetch(h control.Header, m control.FetchBody) error {
	if !c.attached(h.Request, m.Cache) {
		return nil
	}
	r := c.newRequest(h, m)
	if ok, err := c.allows(r); !ok || err != nil {
		return err
	}
	if c.reserved == 0 && !c.reserve(len(m.Indices)*indexBytes) {
		return io.EOF
	}
	r.reserved, c.reserved = c.reserved, 0
	c.mu.Lock() // only this goroutine adds requests
	if r.prefetch {
		c.prefetches[r] = true
		c.prefetched += len(m.Indices)
	} else {
		c.requests[r.id] = r
		c.underWay += len(m.Indices)
	}
	c.mu.Unlock()
	queued := 0
	if r.cached.Enter() {
		switch {
		case r.prefetch:
			r.cached.Prefetched(m.Indices)
		case r.samples.Files:
			r.cached.BeginLoads(m.Indices)
		default:
			r.cached.Fetched(m.Indices)
		}
		queued = r.filler.Submit(r.samples)
		r.cached.Leave()
	} else {
		r.samples.Refuse()
	}
	if r.prefetch {
		c.out.send(control.AppendPrefetched(nil, h.Request, queued))
	}
	return nil
}

// newRequest makes a request of a FETCH or PREFETCH, which is not under way yet.
func (c *Connection) newRequest(h control.Header, m control.FetchBody) *request {
	cached := c.caches[m.Cache]
	r := &request{connection: c, id: h.Request, cached: cached, filler: cached.Filler(), prefetch: h.Type == control.Prefetch,
		slotsOnly: m.Flags&control.SlotsOnly != 0}
	queue := c.queues[cached].fetches
	if r.prefetch {
		queue = c.queues[cached].prefetches
	}
	r.samples = fill.NewRequest(r, queue, m.Indices)
	r.samples.Files = m.Flags&control.File != 0
	r.samples.Unstored = m.Flags&control.Unstored != 0
	r.samples.Send, r.samples.FreeOnly = m.Flags&control.Send != 0 || r.samples.Unstored, r.prefetch || r.slotsOnly
	if m.Flags&control.Loads != 0 {
		r.samples.Loads = c
	}
	return r
}

// allows says whether the limits of a connection allow one more request; false: it has refused the request. An error
// ends the connection.
func (c *Connection) allows(r *request) (bool, error) {
	c.mu.Lock()
	requests, indices, twice := len(c.requests), c.underWay, c.requests[r.id] != nil
	if r.prefetch { // a client cannot know when prefetches end, so they do not count against fetches
		requests, indices = requests+len(c.prefetches), indices+c.prefetched
	}
	c.mu.Unlock()
	switch {
	case twice:
		return false, fmt.Errorf("%w: request %d is under way already", control.ErrProtocol, r.id)
	case requests < control.MaxRequests && indices+r.samples.Len() <= control.MaxUnderWay:
		return true, nil
	case r.prefetch: // accept none of it
		c.out.send(control.AppendPrefetched(nil, r.id, 0))
	default:
		c.refuse(r.id, control.CodeLimit,
			"%d requests with %d indices are under way, at most %d and %d may be; wait for answers first", requests,
			indices, control.MaxRequests, control.MaxUnderWay)
	}
	return false, nil
}

// ended answers a request after its last sample.
func (c *Connection) ended(r *request, failures []control.Failure) {
	c.mu.Lock()
	if r.prefetch {
		delete(c.prefetches, r)
		c.prefetched -= r.samples.Len()
	} else {
		delete(c.requests, r.id)
		c.underWay -= r.samples.Len()
	}
	c.mu.Unlock()
	if r.prefetch {
		c.out.unreserve(r.reserved)
		return
	}
	c.out.answer(control.AppendFetched(nil, r.id, c.out.shorten(failures)), r.reserved)
}

// cancelAll cancels all requests.
func (c *Connection) cancelAll() {
	c.mu.Lock()
	requests := slices.AppendSeq(slices.Collect(maps.Values(c.requests)), maps.Keys(c.prefetches))
	c.mu.Unlock()
	for _, r := range requests {
		r.cancel()
	}
}
