package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// An invalid frame ends the connection with a message, and no other client notices.
func TestWrongFrames(t *testing.T) {
	server.SetTimeouts(t, 300*time.Millisecond, 20*time.Second)
	m := newMemory(10, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	good, number, _ := join(t, s)
	hello := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version})
	for name, c := range map[string]struct {
		bytes []byte
		code  control.Code
		text  string
	}{
		"no hello":   {control.AppendAttach(nil, 1, "pets"), control.CodeProtocol, "HELLO must be the first frame"},
		"two hellos": {append(bytes.Clone(hello), hello...), control.CodeProtocol, "only the first"},
		"request 0": {control.AppendHello(nil, 0, control.HelloBody{Version: 1}), control.CodeProtocol,
			"request 0"},
		"an older version": {control.AppendHello(nil, 1, control.HelloBody{Version: control.Version - 1}), control.CodeVersion,
			fmt.Sprintf("speaks version %d of the protocol, the client %d; use", control.Version, control.Version-1)},
		"a later version": {control.AppendHello(nil, 1, control.HelloBody{Version: control.Version + 1, Kind: 0xFFFF,
			Label: strings.Repeat("é", 31)}), control.CodeVersion, fmt.Sprintf("the client %d; use", control.Version+1)},
		"not even a frame": {[]byte("GET / HTTP/1.1\r\n\r\n"), control.CodeProtocol, "type"},
		"from a server": {append(bytes.Clone(hello),
			control.AppendWelcome(nil, 2, control.WelcomeBody{Version: 1})...), control.CodeProtocol, "wrong side"},
		"too long": {append(bytes.Clone(hello),
			control.AppendHeader(nil, control.Header{Length: 1 << 30, Type: control.Fetch, Request: 2})...),
			control.CodeProtocol, "at most 1048576"},
		"no indices": {append(bytes.Clone(hello),
			control.AppendFetch(nil, control.Fetch, 2, control.FetchBody{})...), control.CodeProtocol, "indices"},
		"a half frame": {append(bytes.Clone(hello), control.AppendAttach(nil, 2, "pets")[:18]...),
			control.CodeProtocol, "more than 300ms to arrive"},
		"a cancel with body": {append(bytes.Clone(hello), 1, 0, 0, 0, byte(control.Cancel), 0, 0, 0, 2, 0, 0, 0, 0, 0,
			0, 0, 7), control.CodeProtocol, "CANCEL of 1 bytes"},
	} {
		p := connect(t, s.Dir())
		p.send(c.bytes)
		var last control.Header
		var body []byte
		for {
			h, b, err := p.tryReceive()
			if err != nil {
				if !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
					t.Errorf("%s: %v", name, err)
				}
				break
			}
			last, body = h, b
		}
		remote, err := control.ParseError(body)
		if last.Type != control.Error || err != nil || remote.Code != c.code || !strings.Contains(remote.Text, c.text) {
			t.Errorf("%s: %v %v %v; want %v with %q", name, last.Type, remote, err, c.code, c.text)
		}
	}
	good.wantFetched(number, 1, 2)
}

// The server refuses more requests than may be under way, and answers those under way.
func TestTooMuchUnderWay(t *testing.T) {
	m := newMemory(200, 100)
	release := m.hold(t, 0)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	p, number, _ := join(t, s)
	ids := []uint64{}
	for k := range control.MaxRequests {
		ids = append(ids, p.id())
		p.send(control.AppendFetch(nil, control.Fetch, ids[k],
			control.FetchBody{Cache: number, Indices: []int64{0, int64(k)}}))
	}
	if a := p.fetch(number, 0, 1); a.refused == nil || a.refused.Code != control.CodeLimit ||
		!strings.Contains(a.refused.Text, "64 requests with 128 indices") {
		t.Errorf("%+v", a.refused)
	}
	id := p.id()
	p.send(control.AppendFetch(nil, control.Prefetch, id, control.FetchBody{Cache: number, Indices: []int64{5}}))
	if h, body := p.receive(); h.Type != control.Prefetched || body[0] != 0 {
		t.Errorf("%v %v", h, body)
	}
	release()
	answered := map[uint64]bool{}
	for range ids {
		h, _ := p.receive()
		answered[h.Request] = true
	}
	expect.Equal(t, len(answered), len(ids), "answered")
}

// A client that reads no answers costs no more than the limit, delays no other client, and is
// disconnected.
func TestClientThatNeverReads(t *testing.T) {
	server.SetTimeouts(t, time.Second, time.Second)
	const samples, size = 400, 1 << 20 // 400 MiB without a slot
	m := newMemory(samples, size)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: 8 << 20, Parallel: 2}))
	p, other := dial(t, s.Dir()), dial(t, s.Dir())
	number, _ := p.attach("pets")
	otherNumber, _ := other.attach("pets")
	p.startFetch(number, shuffled(samples)...)
	most := 0
	fatal.Until(t, "something waits for it", func() bool { most = s.Waiting(); return most > 0 })
	other.wantFetched(otherNumber, 7, 8)
	fatal.Until(t, "it is shown out", func() bool { most = max(most, s.Waiting()); return s.Connections() == 1 })
	if most > control.MaxWaitingSend {
		t.Errorf("%d bytes waited for it", most)
	}
	other.wantFetched(otherNumber, 9)
}

// A slow reader gets all its samples, although they never fit the limit together.
func TestSlowReader(t *testing.T) {
	const samples, size = 90, 1 << 20
	m := newMemory(samples, size)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: 8 << 20, Parallel: 4}))
	p, number, seg := join(t, s)
	id := p.startFetch(number, shuffled(samples)...)
	time.Sleep(300 * time.Millisecond)
	a := p.answer(id, samples)
	if len(a.failures) != 0 || len(a.samples) != samples-int(seg.Slots) {
		t.Errorf("%d came, %d failed", len(a.samples), len(a.failures))
	}
	twice := 0
	for i := range samples {
		twice += m.begun(i) - 1
	}
	if twice > 10 {
		t.Errorf("%d samples were read again for lack of room: the reader's queue should have rested", twice)
	}
}

// A server that ends answers all clients, and leaves the cache warm. The next server reads nothing
// again.
func TestRestartIsWarm(t *testing.T) {
	m := newMemory(50, 1000)
	o := options(t, m, server.CacheOptions{Parallel: 2})
	s, stop := start(t, o)
	p, number, seg := join(t, s)
	p.wantFetched(number, shuffled(40)...)
	release := m.hold(t, 45)
	id := p.startFetch(number, 45, 46, 47, 48)
	fatal.Until(t, "it is being read", func() bool { return m.begun(45) == 1 })
	go func() {
		time.Sleep(50 * time.Millisecond)
		release()
	}()
	stop()
	a := p.answer(id, 4)
	for position, f := range a.failures {
		if f.Code != control.CodeClosing || position == 0 {
			t.Errorf("position %d: %+v", position, f)
		}
	}
	c := view(t, seg) // hits go on without a server
	for i := range 40 {
		wantReady(t, c, i, 1000)
	}
	again, stopAgain := start(t, o)
	p, number, _ = join(t, again)
	p.wantFetched(number, shuffled(40)...)
	for i := range 40 {
		expect.Equal(t, m.begun(i), 1, "reads of sample %d", i)
	}
	stopAgain()
	m.fingerprint = "memory-2" // other data under the same name: a cold cache, and clients keep the old one
	again, _ = start(t, o)
	_, _, cold := attachTo(t, again)
	if stats, err := cold.Stats(); err != nil || stats.Ready != 0 {
		t.Errorf("%d samples of the old data, %v", stats.Ready, err)
	}
	wantReady(t, c, 3, 1000)
}

// A cache has one server, and so has a folder of sockets. The second server names the first.
func TestSecondServer(t *testing.T) {
	m := newMemory(10, 100)
	o := options(t, m, server.CacheOptions{})
	start(t, o)
	if _, err := server.New(context.Background(), o); !errors.Is(err, server.ErrServed) ||
		!strings.Contains(err.Error(), "data.sock") {
		t.Errorf("the same sockets: %v", err)
	}
	other := o
	other.SocketsDir = t.TempDir()
	if _, err := server.New(context.Background(), other); !errors.Is(err, server.ErrServed) ||
		!strings.Contains(err.Error(), "/pets") {
		t.Errorf("the same cache: %v", err)
	}
	m.fingerprint = "memory-2" // even if its source has another one
	expect.Fails(server.New(context.Background(), other))(t, server.ErrServed)
}

func TestRefusesToStart(t *testing.T) {
	m := newMemory(10, 100)
	foreign := t.TempDir()
	fatal.If(t, os.Chmod(foreign, 0o777))
	inTheWay := tmpfs.Folder(t)
	fatal.If(t, os.WriteFile(filepath.Join(inTheWay, "pets"), []byte("no segment"), 0o600))
	busy := fatal.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	for name, c := range map[string]struct {
		change func(o *server.Options)
		want   error
		text   string
	}{
		"name": {func(o *server.Options) { o.Caches[0].Name = "a b" }, shm.ErrInvalid, `"a b"`},
		"two of one name": {func(o *server.Options) {
			o.Caches = append(o.Caches, o.Caches[0])
		}, shm.ErrInvalid, "two caches are named pets"},
		"parallel": {func(o *server.Options) {
			o.Caches[0].Parallel = 33
		}, shm.ErrInvalid, "parallel: 33 reads at a time are not in 1..32"},
		"size": {func(o *server.Options) { o.Caches[0].Size = 1 << 20 }, shm.ErrMemory, "pets"},
		"long path": {func(o *server.Options) {
			o.SocketsDir = filepath.Join(t.TempDir(), strings.Repeat("x", 100))
		}, shm.ErrInvalid, "at most 107 bytes"},
		"writable by all": {func(o *server.Options) {
			o.SocketsDir = foreign
		}, shm.ErrPermission, "no other user may write"},
		"no segment there": {func(o *server.Options) { o.Caches[0].Dir = inTheWay }, shm.ErrFormat, "pets"},
		"metrics where a program listens": {func(o *server.Options) { o.MetricsListen = busy.Addr().String() }, unix.EADDRINUSE,
			"metrics.listen: listen tcp4 " + busy.Addr().String() + ": bind: address already in use: another program listens " +
				"there; take another port, or 0 for any free one"},
	} {
		o := options(t, m, server.CacheOptions{})
		c.change(&o)
		if s, err := server.New(context.Background(), o); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %v with %q", name, err, c.want, c.text)
			if err == nil {
				s.Serve(done())
			}
		}
		if made, err := os.ReadDir(o.Caches[0].Dir); err != nil || o.Caches[0].Dir != inTheWay && len(made) > 0 {
			t.Errorf("%s: left %v, %v", name, made, err)
		}
	}
	free := busy.Addr().String()
	busy.Close()
	taken := options(t, m, server.CacheOptions{})
	taken.MetricsListen = free
	other := fatal.Value(net.Listen("unix", filepath.Join(taken.SocketsDir, control.AdminSocket)))(t)
	defer other.Close()
	expect.Fails(server.New(context.Background(), taken))(t, server.ErrServed)
	if l, err := net.Listen("tcp", free); err != nil {
		t.Errorf("metrics.listen stayed open: %v", err)
	} else {
		l.Close()
	}
	o := server.WithSource(options(t, m, server.CacheOptions{}),
		func(context.Context, source.Settings) (source.Source, error) { return nil, fmt.Errorf("no disk today") })
	if _, err := server.New(context.Background(), o); err == nil ||
		!strings.Contains(err.Error(), "cache pets: no disk today") {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(inTheWay, "pets")); err != nil || string(text) != "no segment" {
		t.Errorf("a file that is not ours was touched: %q, %v", text, err)
	}
}

// done is a context that has ended.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Clients fetch, cancel, prefetch and vanish at random. At the end all samples are in the cache,
// each was read few times, and nothing is left over.
func TestAnything(t *testing.T) {
	const samples, size = 500, 2000
	m := newMemory(samples, size)
	m.latency = 50 * time.Microsecond
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 4}))
	var clients sync.WaitGroup
	for seed := range uint64(6) {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range 8 {
				p, number, _ := join(t, s)
				for range r.IntN(6) {
					id := p.id()
					kind := []control.Type{control.Fetch, control.Fetch, control.Prefetch}[r.IntN(3)]
					p.send(control.AppendFetch(nil, kind, id,
						control.FetchBody{Cache: number, Indices: shuffled(samples)[:1+r.IntN(100)]}))
					if r.IntN(2) == 0 {
						p.send(control.AppendCancel(nil, id))
					}
				}
				if r.IntN(3) > 0 {
					p.socket.CloseWrite() // it sends nothing more, and reads to the end
					for {
						if _, _, err := p.tryReceive(); err != nil {
							break
						}
					}
				}
				p.socket.Close()
			}
		})
	}
	clients.Wait()
	fatal.Until(t, "all clients are forgotten", func() bool { return s.Connections() == 0 })
	p, number, seg := join(t, s)
	if a := p.fetch(number, 0, shuffled(samples)...); len(a.failures) != 0 || len(a.samples) != 0 {
		t.Errorf("%d failed, %d without a slot", len(a.failures), len(a.samples))
	}
	c := view(t, seg)
	for i := range samples {
		wantReady(t, c, i, size)
		if n := m.begun(i); n > 3 {
			t.Errorf("sample %d was read %d times", i, n)
		}
	}
	if stats, err := c.Stats(); err != nil || stats.Stored != samples {
		t.Errorf("%d stored, %v", stats.Stored, err)
	}

}

// The janitor reclaims claims of a dead client even if no client needs the samples. It leaves
// claims of live ones.
func TestJanitor(t *testing.T) {
	m := newMemory(10, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	_, _, seg := join(t, s)
	live := view(t, seg)
	if _, r, err := live.Claim(2, 100, 0); r != cache.Stored || err != nil {
		t.Fatal(r, err)
	}
	locks := fatal.Value(seg.NewLocks())(t)
	dying := fatal.Value(cache.Attach(seg, cache.Options{Locks: locks}))(t)
	if _, r, err := dying.Claim(1, 100, 0); r != cache.Stored || err != nil {
		t.Fatal(r, err)
	}
	locks.Close() // as the kernel does when it dies
	fatal.Until(t, "the claim of the dead is reclaimed", func() bool {
		state, err := live.State(1)
		return err == nil && state == cache.StateEmpty
	})
	expect.Gives(live.State(2))(t, cache.StateWriting)
}

// A client that reads no answers does not stop a server from ending.
func TestEndsBesideAClientThatNeverReads(t *testing.T) {
	server.SetDrainTimeout(t, 300*time.Millisecond)
	const samples, size = 60, 1 << 20
	m := newMemory(samples, size)
	s, stop := start(t, options(t, m, server.CacheOptions{Size: 8 << 20, Parallel: 2}))
	p, number, _ := join(t, s)
	p.startFetch(number, shuffled(samples)...)
	fatal.Until(t, "something waits for it", func() bool { return s.Waiting() > 1<<20 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ending took %v", took)
	}
}
