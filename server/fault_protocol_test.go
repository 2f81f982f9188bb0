package server_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source/sourcetest"
)

// last reads to the end of a connection, and returns the error at its end; nil: none.
func (p *peer) last() *control.RemoteError {
	p.t.Helper()
	var remote *control.RemoteError
	for {
		h, body, err := p.tryReceive()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				p.t.Fatal("the connection does not end")
			}
			return remote
		}
		if remote = nil; h.Type == control.Error {
			if remote, err = control.ParseError(body); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// A client may send its frames in pieces of any size, and several at once.
func TestFramesInPieces(t *testing.T) {
	m := newMemory(10, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p := connect(t, s.Dir())
	frames := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version})
	frames = control.AppendFetch(frames, control.Prefetch, 2, control.FetchBody{Indices: []int64{1}})
	frames = control.AppendFetch(frames, control.Fetch, 3, control.FetchBody{Cache: 7, Indices: []int64{1}})
	for _, b := range frames {
		p.send([]byte{b})
	}
	for _, want := range []control.Type{control.Welcome, control.Error, control.Error} {
		if h, body := p.receive(); h.Type != want {
			t.Errorf("%v, want %v: %q", h.Type, want, body)
		}
	}
	number, _ := p.attach("pets")
	frames = frames[:0]
	for k := range 50 {
		frames = control.AppendFetch(frames, control.Fetch, uint64(100+k),
			control.FetchBody{Cache: number, Indices: []int64{int64(k % 10)}})
	}
	p.send(frames)
	answered := map[uint64]bool{}
	for range 50 {
		h, body := p.receive()
		if h.Type != control.Fetched || binary.LittleEndian.Uint32(body) != 0 {
			t.Errorf("%v: %q", h.Type, body)
		}
		answered[h.Request] = true
	}
	if len(answered) != 50 {
		t.Errorf("%d of 50 were answered", len(answered))
	}
}

// The time of a frame runs from its first byte, so slow pieces do not extend it. Between frames
// there is no limit.
func TestSlowLoris(t *testing.T) {
	const limit = 300 * time.Millisecond
	server.SetTimeouts(t, limit, 20*time.Second)
	s, _ := start(t, options(t, newMemory(10, 100), server.CacheOptions{}))
	hello := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version})
	large := control.AppendFetch(nil, control.Fetch, 2, control.FetchBody{Indices: make([]int64, 1000)})
	var all sync.WaitGroup
	for name, frames := range map[string][]byte{"in the header": hello[:10], "in the body": hello[:len(hello)-1],
		"in a later frame": append(bytes.Clone(hello), large...)} {
		all.Go(func() {
			p := connect(t, s.Dir())
			began := time.Now()
			go func() {
				for k := range frames {
					if _, err := p.socket.Write(frames[k : k+1]); err != nil {
						return
					}
					time.Sleep(limit / 20)
				}
			}()
			remote := p.last()
			if remote == nil || remote.Code != control.CodeProtocol ||
				!strings.Contains(remote.Text, "a frame took more than 300ms to arrive") {
				t.Errorf("%s: %+v", name, remote)
			}
			// the client in the middle of a frame; the one in a later frame has two minutes
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
		})
	}
	resting := dial(t, s.Dir())
	all.Wait()
	time.Sleep(limit)
	number, _ := resting.attach("pets")
	if a := resting.fetch(number, 0, 1); len(a.failures) != 0 || a.refused != nil {
		t.Errorf("one that rested: %+v", a)
	}
}

// The server accepts batches up to the limit, and refuses larger ones. Invalid indices fail alone.
func TestBatchesOfAnySize(t *testing.T) {
	const samples, size = 100, 50
	s, _ := start(t, options(t, newMemory(samples, size), server.CacheOptions{}))
	good := dial(t, s.Dir())
	number, seg := good.attach("pets")
	indices := make([]int64, control.MaxIndices)
	for k := range indices {
		indices[k] = int64(k % samples)
	}
	if a := good.fetch(number, 0, indices...); len(a.failures) != 0 || a.refused != nil {
		t.Errorf("as many as may be: %d failed, %v", len(a.failures), a.refused)
	}
	for _, i := range []int64{samples, -1, 1 << 40, -1 << 63, 1<<63 - 1} {
		if a := good.fetch(number, 0, 3, i, 4); len(a.failures) != 1 || a.failures[1].Code != control.CodeIndex ||
			!strings.Contains(a.failures[1].Text, "99") {
			t.Errorf("index %d: %+v", i, a.failures)
		}
	}
	for k := range indices {
		indices[k] = -1
	}
	// each has a failure, although the texts of all exceed a frame
	if a := good.fetch(number, 0, indices...); len(a.failures) != len(indices) {
		t.Errorf("%d of %d failed", len(a.failures), len(indices))
	}
	over := dial(t, s.Dir())
	over.send(control.AppendFetch(nil, control.Fetch, 9,
		control.FetchBody{Indices: make([]int64, control.MaxIndices+1)}))
	if remote := over.last(); remote == nil || remote.Code != control.CodeProtocol ||
		!strings.Contains(remote.Text, "524304 bytes") || !strings.Contains(remote.Text, "65536") {
		t.Errorf("one more: %+v", remote)
	}
	wantReady(t, view(t, seg), 3, size)
}

// Damaged and truncated conversations end in an error or an answer, never in the end of the server.
// Nothing of them stays, and other clients notice nothing.
func TestDamagedConversations(t *testing.T) {
	server.SetTimeouts(t, 200*time.Millisecond, 20*time.Second)
	const samples, size = 50, 20_000
	m := newMemory(samples, size)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: 4<<20 + 500_000, Parallel: 2}))
	other := dial(t, s.Dir())
	number, seg := other.attach("pets")
	if seg.Slots == 0 || seg.Slots == samples {
		t.Fatalf("%d slots: some samples should have none", seg.Slots)
	}
	c := view(t, seg)
	whole := control.AppendHello(nil, 1,
		control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "damaged"})
	whole = control.AppendAttach(whole, 2, "pets")
	whole = control.AppendFetch(whole, control.Fetch, 3, control.FetchBody{Indices: shuffled(20)})
	whole = control.AppendFetch(whole, control.Prefetch, 4, control.FetchBody{Indices: shuffled(20)})
	whole = control.AppendCancel(whole, 3)
	whole = control.AppendAttach(whole, 5, "dogs")
	whole = control.AppendFetch(whole, control.Fetch, 6,
		control.FetchBody{Flags: control.SlotsOnly, Indices: shuffled(50)})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var clients sync.WaitGroup
	for worker := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, worker))
		clients.Go(func() {
			for range 100 {
				frames := bytes.Clone(whole)
				for range r.IntN(4) {
					frames[r.IntN(len(frames))] ^= byte(1 << r.IntN(8))
				}
				if r.IntN(3) == 0 {
					at := r.IntN(len(frames))
					frames = append(frames[:at], frames[min(len(frames), at+r.IntN(40)):]...)
				}
				if r.IntN(3) == 0 {
					frames = frames[:r.IntN(len(frames)+1)]
				}
				socket, err := net.DialUnix("unix", nil,
					&net.UnixAddr{Name: s.Dir() + "/" + control.DataSocket, Net: "unix"})
				if err != nil {
					t.Error(err)
					return
				}
				socket.Write(frames) // the server may have closed the connection already
				if r.IntN(2) == 0 {
					socket.CloseWrite()
					socket.SetReadDeadline(time.Now().Add(20 * time.Second))
					if _, err := io.Copy(io.Discard, socket); errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("neither answered nor ended")
					}
				}
				socket.Close()
			}
		})
	}
	for range 50 {
		if a := other.fetch(number, 0, shuffled(samples)...); len(a.failures) != 0 ||
			len(a.samples) != samples-int(seg.Slots) {
			t.Errorf("another client: %d failed, %d came", len(a.failures), len(a.samples))
		} else {
			for _, data := range a.samples {
				if len(data) != size {
					t.Errorf("a sample of %d bytes", len(data))
				}
			}
		}
	}
	clients.Wait()
	eventually(t, "all are forgotten", func() bool { return s.Connections() == 1 })
	ready := 0
	for i := range samples {
		if data, hit, err := c.View(i); err != nil || hit && !bytes.Equal(data, sourcetest.Content(i, size)) {
			t.Errorf("sample %d: %v", i, err)
		} else if hit {
			ready++
		}
	}
	if ready != int(seg.Slots) {
		t.Errorf("%d samples in %d slots", ready, seg.Slots)
	}
}
