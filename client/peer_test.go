package client_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

const peerBytes = 50

// peer follows a script, for errors that no correct server makes. internal/cli has tests with the
// correct one.
type peer struct {
	t   *testing.T
	dir string
	seg *shm.Segment
	// options of the cache; 0: 100 samples of peerBytes, and our version of the protocol
	options client.Options
	version uint16
	// greet answers HELLO and ATTACH of a connection, by its number; fetch answers one request.
	// false: hang up
	greet func(p *peer, socket *net.UnixConn, connection int) bool
	fetch func(p *peer, socket *net.UnixConn, request uint64, connection int) bool

	connections atomic.Int32

	mu    sync.Mutex // protects asked
	asked []control.FetchBody
}

func startPeer(t *testing.T, p *peer) {
	t.Helper()
	if p.options.Samples == 0 {
		p.options = client.Options{Samples: 100, SampleBytes: peerBytes}
	}
	if p.seg == nil { // a test may have its own
		_, path := named(t, p.options)
		var err error
		if p.seg, err = shm.Open(path, shm.OpenOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.t, p.dir = t, t.TempDir()
	var talks sync.WaitGroup
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(p.dir, control.DataSocket), Net: "unix"})
	fatal.If(t, err)
	talks.Go(func() {
		for {
			socket, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			talks.Go(func() { p.talk(socket, int(p.connections.Add(1))) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		talks.Wait() // a client that stays connected makes the test hang
		p.seg.Close()
	})
}

func (p *peer) talk(socket *net.UnixConn, connection int) {
	defer socket.Close()
	for goOn := true; goOn; {
		h, err := control.ReadHeader(socket, true)
		body := make([]byte, h.Length)
		if err == nil {
			_, err = io.ReadFull(socket, body)
		}
		if m, wrong := control.ParseFetch(h.Type, body); h.Type == control.Fetch {
			if err = errors.Join(err, wrong); wrong != nil {
				p.t.Error(wrong)
			}
			p.mu.Lock()
			p.asked = append(p.asked, m)
			p.mu.Unlock()
		}
		switch {
		case err != nil:
			return
		case h.Type == control.Attach:
			goOn = p.greet(p, socket, connection)
		case slices.Contains([]control.Type{control.Fetch, control.Prefetch, control.Announce, control.Offer}, h.Type):
			goOn = p.fetch(p, socket, h.Request, connection)
		}
	}
}

// say sends a frame with n descriptors.
func (p *peer) say(socket *net.UnixConn, frame []byte, n int) {
	var fds []int
	for range n {
		fds = append(fds, p.seg.FD())
	}
	var rights []byte
	if n > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := socket.WriteMsgUnix(frame, rights, nil); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		p.t.Error(err)
	}
}

// welcome answers like a server, except for the descriptors.
func (p *peer) welcome(socket *net.UnixConn, withWelcome, withAttached int) bool {
	p.say(socket, control.AppendWelcome(nil, 1,
		control.WelcomeBody{Version: cmp.Or(p.version, control.Version), MaxIndices: 40}), withWelcome)
	p.say(socket, control.AppendAttached(nil, 2, control.AttachedBody{Cache: 7, UUID: p.seg.Header.UUID}), withAttached)
	return true
}

func greetWell(p *peer, socket *net.UnixConn, _ int) bool { return p.welcome(socket, 0, 1) }

func (p *peer) dial(timeout time.Duration) (*client.Served, error) {
	return client.Dial(context.Background(), "test", client.DialOptions{SocketsDir: p.dir, Timeout: timeout})
}

// wantDescriptors checks that as many descriptors are open as before. Those of the peer close a
// little later.
func wantDescriptors(t *testing.T, before int) {
	t.Helper()
	fatal.Until(t, fmt.Sprintf("%d descriptors are open", before), func() bool {
		return len(fatal.Value(os.ReadDir("/proc/self/fd"))(t)) == before
	})
}

// No descriptor stays open, in any number and with any frame.
func TestUnexpectedDescriptors(t *testing.T) {
	for _, with := range [][2]int{{0, 1}, {0, 2}, {0, 5}, {1, 1}, {2, 0}, {0, 0}} {
		p := &peer{greet: func(p *peer, socket *net.UnixConn, _ int) bool { return p.welcome(socket, with[0], with[1]) }}
		startPeer(t, p)
		all := fatal.Value(os.ReadDir("/proc/self/fd"))(t)
		c, err := p.dial(5 * time.Second)
		if good := with[0] == 0 && with[1] > 0; good != (err == nil) || !good && !errors.Is(err, control.ErrProtocol) {
			t.Errorf("%v: %v", with, err)
		}
		if c != nil {
			c.Close()
		}
		wantDescriptors(t, len(all))
	}
}

// A process without free descriptors gets that error, and not a protocol error.
func TestDialWithoutADescriptor(t *testing.T) {
	var before unix.Rlimit
	fatal.If(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	p := &peer{greet: func(p *peer, socket *net.UnixConn, connection int) bool {
		if connection > 1 { // both ends of the connection are open now
			free, err := unix.Dup(0)
			expect.NoError(p.t, err)
			unix.Close(free)
			expect.NoError(p.t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max}))
		}
		return p.welcome(socket, 0, 1)
	}}
	startPeer(t, p)
	c, err := p.dial(5 * time.Second) // the runtime has its descriptors for sockets
	fatal.If(t, err)
	c.Close()
	_, err = p.dial(5 * time.Second)
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	if !errors.Is(err, unix.EMFILE) || !errors.Is(err, client.ErrSystem) || errors.Is(err, control.ErrProtocol) {
		t.Error(err)
	}
}

// A server that ends during the greeting counts as away: the client waits for the next one and
// finds it.
func TestServerThatIsJustEnding(t *testing.T) {
	for name, end := range map[string]func(p *peer, socket *net.UnixConn){
		"hangs up": func(*peer, *net.UnixConn) {},
		"says so": func(p *peer, socket *net.UnixConn) {
			p.say(socket, control.AppendError(nil, 2, control.CodeClosing, "the server is ending"), 0)
		},
		"between the two": func(p *peer, socket *net.UnixConn) {
			p.say(socket, control.AppendWelcome(nil, 1, control.WelcomeBody{Version: 1, MaxIndices: 9}), 0)
		},
	} {
		p := &peer{fetch: func(p *peer, socket *net.UnixConn, request uint64, connection int) bool {
			p.say(socket, control.AppendPrefetched(nil, request, 1), 0)
			return connection != 7
		}}
		p.greet = func(p *peer, socket *net.UnixConn, connection int) bool {
			if connection != 7 && connection != 14 {
				end(p, socket)
				return false
			}
			return greetWell(p, socket, connection)
		}
		startPeer(t, p)
		c, err := p.dial(5 * time.Second)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for range 2 {
			expect.Gives(c.Prefetch(context.Background(), []int{1}))(t, 1, name)
		}
		c.Close()
		began := time.Now()
		_, err = p.dial(200 * time.Millisecond) // only such servers answer now; the deadline may pass during a greeting
		if !errors.Is(err, client.ErrNoServer) || time.Since(began) < 200*time.Millisecond ||
			!strings.Contains(err.Error(), "stocached serve -c") &&
				!strings.Contains(err.Error(), "did not answer within 200ms") {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
	}
}

// A client that is refused gets the reason, however early the server hangs up.
func TestServerThatLetsNobodyIn(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, control.DataSocket), Net: "unix"})
	fatal.If(t, err)
	defer listener.Close()
	go func() {
		for {
			socket, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			expect.Works(socket.Write(control.AppendError(nil, 0, control.CodeDenied, "this server belongs to user id 7")))(t)
			socket.Close()
		}
	}()
	for range 200 { // the server hangs up before HELLO, or after
		var remote *client.RemoteError
		_, err := client.Dial(context.Background(), "test",
			client.DialOptions{SocketsDir: dir, Timeout: 10 * time.Second})
		if !errors.As(err, &remote) || remote.Code != control.CodeDenied {
			t.Fatal(err)
		}
	}
}

// An invalid answer is a protocol error at once, costs no memory, and is not taken for a server
// that is away.
func TestAnswersThatCannotBe(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a sample of 4 GiB": control.AppendHeader(nil,
			control.Header{Length: 1<<32 - 1, Type: control.Sample, Request: 3}),
		"a byte too many":       control.AppendSampleHeader(nil, 3, 0, peerBytes+1),
		"no such type":          control.AppendHeader(nil, control.Header{Type: 77, Request: 3}),
		"no such request":       control.AppendFetched(nil, 99, nil),
		"no such position":      append(control.AppendSampleHeader(nil, 3, 5, 1), 0),
		"an answer to a client": control.AppendFetch(nil, control.Fetch, 3, control.FetchBody{Indices: []int64{1}}),
	} {
		p := &peer{greet: greetWell, fetch: func(p *peer, socket *net.UnixConn, _ uint64, _ int) bool { p.say(socket, frame, 0); return true }}
		startPeer(t, p)
		c, err := p.dial(5 * time.Second)
		fatal.If(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err = c.Fetch(ctx, []int{1}, make([]byte, peerBytes), peerBytes)
		cancel()
		if !errors.Is(err, control.ErrProtocol) || errors.Is(err, client.ErrNoServer) {
			t.Errorf("%s: %v", name, err)
		}
		expect.Equal(t, p.connections.Load(), 1, "%s: connections", name)
		c.Close()
	}
}

// loseSome answers a FETCH: all samples were stored, and of those two thirds are gone by now. With
// SEND it sends all.
func loseSome(p *peer, socket *net.UnixConn, request uint64, _ int) bool {
	p.mu.Lock()
	m := p.asked[len(p.asked)-1]
	p.mu.Unlock()
	c, err := cache.Attach(p.seg, cache.Options{})
	if err != nil {
		p.t.Error(err)
		return false
	}
	defer c.Close()
	var frames []byte
	for k, i := range m.Indices {
		data := sample(int(i), peerBytes)
		switch {
		case m.Flags == control.Send:
			frames = append(control.AppendSampleHeader(frames, request, uint32(k), peerBytes), data...)
		case i%3 == 0:
			expect.Works(c.Set(int(i), data, cache.Wait))(p.t)
		}
	}
	p.say(socket, control.AppendFetched(frames, request, nil), 0)
	return true
}

// flags returns the flags of all FETCHes so far.
func (p *peer) flags() (all []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.asked {
		all = append(all, m.Flags)
	}
	p.asked = nil
	return all
}

// Ensure that samples that are gone when the client copies them come as bytes in the second round. This is the test
// gone_before_the_copy in cclient/ctest/fetch.c.
func TestGoneBeforeTheCopy(t *testing.T) {
	p := &peer{greet: greetWell, fetch: loseSome}
	startPeer(t, p)
	c := fatal.Value(p.dial(5 * time.Second))(t)
	defer c.Close()
	for _, asked := range []struct {
		n     int // a request has 40
		flags []uint32
	}{{36, []uint32{0, control.Send}}, {100, []uint32{0, control.Send, 0, control.Send, 0, control.Send}}} {
		indices := make([]int, asked.n)
		for k := range indices {
			indices[k] = k
		}
		samples, err := c.FetchSamples(t.Context(), indices)
		expect.NoError(t, err)
		for k, data := range samples {
			if !bytes.Equal(data, sample(k, peerBytes)) {
				t.Errorf("sample %d came wrong", k)
			}
		}
		expect.Slice(t, p.flags(), asked.flags, "%v", asked.n)
	}
}

// Ensure that a FETCH for more than a quarter of the slots of a cache that evicts has all samples
// sent at once, and that Fill of them succeeds when they were stored.
func TestMoreThanACacheKeeps(t *testing.T) {
	p := &peer{greet: greetWell, fetch: loseSome, options: client.Options{Samples: 100, SampleBytes: peerBytes, Slots: 16,
		Policy: client.PolicyRandom}}
	startPeer(t, p)
	c := fatal.Value(p.dial(5 * time.Second))(t)
	defer c.Close()
	indices := []int{1, 2, 4, 5, 7}
	for n, want := range map[int][]uint32{5: {control.Send}, 4: {0, control.Send}} {
		samples := fatal.Value(c.FetchSamples(t.Context(), indices[:n]))(t)
		for k, data := range samples {
			if !bytes.Equal(data, sample(indices[k], peerBytes)) {
				t.Errorf("sample %d came wrong", indices[k])
			}
		}
		expect.Slice(t, p.flags(), want, "%v", n)
	}
	expect.NoError(t, c.Fill(t.Context(), indices))
	expect.Slice(t, p.flags(), []uint32{control.SlotsOnly}, "Fill")
}

// Ensure that a server of a version that this client does not know is an error.
func TestUnknownVersion(t *testing.T) {
	p := &peer{greet: greetWell, version: control.Version + 1}
	startPeer(t, p)
	_, err := p.dial(5 * time.Second)
	if !errors.Is(err, control.ErrProtocol) || !strings.Contains(err.Error(), fmt.Sprintf("version %d, this client %d; use", control.Version+1, control.Version)) {
		t.Error(err)
	}
}
