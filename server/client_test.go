package server_test

import (
	"bufio"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// peer is a client that only exchanges frames. Safe for one goroutine.
type peer struct {
	t      *testing.T
	socket *net.UnixConn
	r      *bufio.Reader
	next   uint64
}

// dial connects and sends HELLO.
func dial(t *testing.T, dir string) *peer {
	t.Helper()
	p := connect(t, dir)
	p.send(control.AppendHello(nil, p.id(),
		control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "test"}))
	h, body := p.receive()
	fatal.Equal(t, h.Type, control.Welcome, "%q", body)
	return p
}

func connect(t *testing.T, dir string) *peer {
	t.Helper()
	socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, control.DataSocket), Net: "unix"})
	fatal.If(t, err)
	t.Cleanup(func() { socket.Close() })
	return &peer{t: t, socket: socket, r: bufio.NewReader(socket)}
}

func (p *peer) id() uint64 { p.next++; return p.next }

func (p *peer) send(frame []byte) {
	p.t.Helper()
	fatal.Value(p.socket.Write(frame))(p.t)
}

func (p *peer) receive() (control.Header, []byte) {
	p.t.Helper()
	h, body, err := p.tryReceive()
	fatal.If(p.t, err)
	return h, body
}

func (p *peer) tryReceive() (control.Header, []byte, error) {
	p.socket.SetReadDeadline(time.Now().Add(20 * time.Second))
	h, err := control.ReadHeader(p.r, false)
	if err != nil {
		return h, nil, err
	}
	body := make([]byte, h.Length)
	_, err = io.ReadFull(p.r, body)
	return h, body, err
}

// attach returns the number of a cache, and a segment attached through the received descriptor.
func (p *peer) attach(name string) (uint32, *shm.Segment) {
	p.t.Helper()
	number, seg, ok := p.tryAttach(name)
	if !ok {
		p.t.Fatal("there is no cache", name)
	}
	p.t.Cleanup(func() { seg.Close() })
	return number, seg
}

// tryAttach is attach for a cache that may not exist.
func (p *peer) tryAttach(name string) (number uint32, seg *shm.Segment, ok bool) {
	p.t.Helper()
	p.send(control.AppendAttach(nil, p.id(), name))
	// The descriptor comes with the first byte of the frame, so read it before buffering.
	var head [control.HeaderBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	p.socket.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, oobn, _, _, err := p.socket.ReadMsgUnix(head[:], rights)
	if err != nil || n != len(head) {
		p.t.Fatalf("%d bytes, %v", n, err)
	}
	h := fatal.Value(control.ParseHeader(head, false))(p.t)
	body := make([]byte, h.Length)
	fatal.Value(io.ReadFull(p.socket, body))(p.t)
	if h.Type == control.Error {
		return 0, nil, false
	}
	m := fatal.Value(control.ParseAttached(body))(p.t)
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil || len(messages) != 1 {
		p.t.Fatalf("no descriptor: %d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		p.t.Fatal(fds, err)
	}
	defer unix.Close(fds[0])
	if seg, err = shm.OpenFD(fds[0], shm.OpenOptions{UUID: &m.UUID}); err != nil {
		p.t.Fatal(err)
	}
	return m.Cache, seg, true
}

// join connects a client, and attaches it to the cache pets.
func join(t *testing.T, s *server.Server) (p *peer, number uint32, seg *shm.Segment) {
	t.Helper()
	p = dial(t, s.Dir())
	number, seg = p.attach("pets")
	return p, number, seg
}

// attachTo is join with a view of the cache.
func attachTo(t *testing.T, s *server.Server) (*peer, uint32, *cache.Cache) {
	t.Helper()
	p, number, seg := join(t, s)
	return p, number, view(t, seg)
}

// answer is the answer of a fetch.
type answer struct {
	samples  map[uint32][]byte
	failures map[uint32]control.Failure
	refused  *control.RemoteError
}

// fetch sends a FETCH and waits for the answer.
func (p *peer) fetch(cache uint32, flags uint32, indices ...int64) answer {
	p.t.Helper()
	id := p.id()
	p.send(control.AppendFetch(nil, control.Fetch, id, control.FetchBody{Cache: cache, Flags: flags, Indices: indices}))
	return p.answer(id, len(indices))
}

// startFetch sends a FETCH and does not wait.
func (p *peer) startFetch(cache uint32, indices ...int64) (id uint64) {
	p.t.Helper()
	id = p.id()
	p.send(control.AppendFetch(nil, control.Fetch, id, control.FetchBody{Cache: cache, Indices: indices}))
	return id
}

// wantFetched checks that no sample of a FETCH fails.
func (p *peer) wantFetched(cache uint32, indices ...int64) {
	p.t.Helper()
	if a := p.fetch(cache, 0, indices...); len(a.failures) != 0 || a.refused != nil {
		p.t.Errorf("%+v, %v", a.failures, a.refused)
	}
}

func (p *peer) answer(id uint64, n int) answer {
	p.t.Helper()
	a := answer{samples: map[uint32][]byte{}, failures: map[uint32]control.Failure{}}
	for {
		h, body := p.receive()
		fatal.Equal(p.t, h.Request, id, "%v for request: %q", h.Type, body)
		switch h.Type {
		case control.Sample:
			position := fatal.Value(control.ParseSample(body))(p.t)
			a.samples[position] = body[control.SampleBytes:]
		case control.Fetched:
			failures := fatal.Value(control.ParseFetched(body, n))(p.t)
			for _, f := range failures {
				a.failures[f.Position] = f
			}
			return a
		case control.Error:
			remote := fatal.Value(control.ParseError(body))(p.t)
			a.refused = remote
			return a
		default:
			p.t.Fatalf("%v: %q", h.Type, body)
		}
	}
}
